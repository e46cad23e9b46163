//! Listings of a remote, which a mount keeps for a while: names of tenants, directories of collections. While the remote
//! does not answer, the mount keeps those that it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::model::{Error, Result};

/// Listings are asked for again after this time.
pub(in crate::remote) const KEPT: Duration = Duration::from_secs(10);
/// A lookup in an older listing waits this long for a newer one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Listings by a key. Clones share them.
#[derive(Default)]
pub(in crate::remote) struct Listings<V> {
    shared: Arc<Shared<V>>,
}

struct Shared<V> {
    listed: Mutex<HashMap<String, Listed<V>>>,
    changed: Condvar,
}

/// The answer to a request for the listing of a key.
pub(in crate::remote) enum Answer<V> {
    /// Its listing.
    Of(V),
    /// The listings of all keys.
    All(HashMap<String, V>),
}

struct Listed<V> {
    when: Instant,
    listing: V,
    /// When a thread has begun to ask again.
    asking: Option<Instant>,
}

impl<V> Clone for Listings<V> {
    fn clone(&self) -> Listings<V> {
        Listings { shared: self.shared.clone() }
    }
}

impl<V> Default for Shared<V> {
    fn default() -> Shared<V> {
        Shared { listed: Mutex::default(), changed: Condvar::new() }
    }
}

impl<V> Listed<V> {
    fn is_new(&self) -> bool {
        self.when.elapsed() < KEPT
    }
}

impl<V: Clone + Default + Send + 'static> Listings<V> {
    /// The listing of `key`. `list` asks for it; if it takes long, or fails, the known one is returned.
    pub fn get(&self, key: &str, list: impl FnOnce() -> Result<Answer<V>> + Send + 'static) -> Result<V> {
        let mut listed = self.shared.listed.lock();
        let Some(known) = listed.get_mut(key) else {
            drop(listed);
            let found = list()?;
            let mut listed = self.shared.listed.lock();
            note(&mut listed, key, found);
            return Ok(listed.get(key).map(|known| known.listing.clone()).unwrap_or_default());
        };
        if known.is_new() {
            return Ok(known.listing.clone());
        }
        let since = match known.asking {
            Some(since) => since,
            None => {
                let now = Instant::now();
                known.asking = Some(now);
                let (listings, key) = (self.clone(), key.to_owned());
                let asked = std::thread::Builder::new().name("names".to_owned()).spawn(move || {
                    let found = list();
                    listings.answered(&key, found);
                });
                if let Err(error) = asked {
                    known.asking = None;
                    return Err(Error::io("starting a thread", error));
                }
                now
            }
        };
        let until = since + PATIENCE;
        while listed.get(key).is_some_and(|known| known.asking.is_some()) {
            if self.shared.changed.wait_until(&mut listed, until).timed_out() {
                break;
            }
        }
        Ok(listed.get(key).map(|known| known.listing.clone()).unwrap_or_default())
    }

    /// The listing of `key` as it was known last, however long ago.
    pub fn known(&self, key: &str) -> Option<V> {
        self.shared.listed.lock().get(key).map(|known| known.listing.clone())
    }

    /// The listing of `key`, if it was made a moment ago.
    pub fn known_now(&self, key: &str) -> Option<V> {
        let listed = self.shared.listed.lock();
        listed.get(key).filter(|known| known.is_new()).map(|known| known.listing.clone())
    }

    /// Notes the listings of all keys.
    pub fn know(&self, all: HashMap<String, V>) {
        note(&mut self.shared.listed.lock(), "", Answer::All(all));
    }

    /// Asks again at the next use, of all keys.
    pub fn make_old(&self) {
        let old = Instant::now().checked_sub(KEPT);
        for known in self.shared.listed.lock().values_mut() {
            known.when = old.unwrap_or(known.when);
        }
    }

    fn answered(&self, key: &str, found: Result<Answer<V>>) {
        let mut listed = self.shared.listed.lock();
        match found {
            Ok(found) => note(&mut listed, key, found),
            Err(error) => log::warn!("directories show the names of the last listing: {error}"),
        }
        if let Some(known) = listed.get_mut(key) {
            (known.when, known.asking) = (Instant::now(), None);
        }
        self.shared.changed.notify_all();
    }
}

/// Notes the answer to a request for the listing of `key`.
fn note<V: Default>(listed: &mut HashMap<String, Listed<V>>, key: &str, found: Answer<V>) {
    let when = Instant::now();
    let mut set = |key: String, listing| {
        let known = listed.entry(key).or_insert(Listed { when, listing: V::default(), asking: None });
        (known.when, known.listing) = (when, listing);
    };
    match found {
        Answer::Of(listing) => set(key.to_owned(), listing),
        Answer::All(mut all) => {
            set(key.to_owned(), all.remove(key).unwrap_or_default());
            all.into_iter().for_each(|(key, listing)| set(key, listing));
            // The others have none any more.
            for known in listed.values_mut().filter(|known| known.when != when) {
                (known.when, known.listing) = (when, V::default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::{Answer, Listings};
    use crate::model::Error;

    #[test]
    fn known_names_stay_while_nobody_answers_and_newer_ones_replace_them() {
        let names = Listings::default();
        assert!(names.get("", || Err(Error::invalid("no answer"))).is_err());
        assert_eq!(names.get("", || Ok(Answer::Of(vec!["a".to_owned()]))).unwrap(), ["a"]);
        assert_eq!(names.get("", || panic!("they are new")).unwrap(), ["a"]);
        names.make_old();
        assert_eq!(names.get("", || Err(Error::invalid("no answer"))).unwrap(), ["a"]);
        names.make_old();
        let (answer, answered) = mpsc::channel();
        let begun = Instant::now();
        let late = move || Ok(Answer::Of(answered.recv().unwrap()));
        assert_eq!(names.get("", late).unwrap(), ["a"]);
        assert_eq!(names.get("", || panic!("a thread asks")).unwrap(), ["a"]);
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        answer.send(vec!["b".to_owned()]).unwrap();
        while names.shared.listed.lock().values().any(|known| known.asking.is_some()) {
            std::thread::yield_now();
        }
        assert_eq!(names.get("", || panic!("they are new")).unwrap(), ["b"]);
    }

    #[test]
    fn an_answer_with_all_names_empties_those_that_it_lacks() {
        let names = Listings::default();
        let some = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        names.know([("".to_owned(), some(&["t", "u"])), ("t".to_owned(), some(&["a"]))].into());
        assert_eq!(names.get("t", || panic!("they are known")).unwrap(), ["a"]);
        assert_eq!(names.get("u", move || Ok(Answer::Of(some(&["b"])))).unwrap(), ["b"]);
        names.make_old();
        let all = [("".to_owned(), some(&["u"])), ("u".to_owned(), some(&["c"]))].into();
        assert_eq!(names.get("", move || Ok(Answer::All(all))).unwrap(), ["u"]);
        assert_eq!(names.get("u", || panic!("they are new")).unwrap(), ["c"]);
        assert_eq!(names.get("t", || panic!("they are new")).unwrap(), [""; 0]);
    }
}
