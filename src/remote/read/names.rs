//! Names of tenants and collections, which a mount keeps for a while. While the remote does not answer, the
//! mount keeps the names that it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::model::{Error, Result};

/// Names are asked for again after this time.
pub(in crate::remote) const KEPT: Duration = Duration::from_secs(10);
/// A lookup with older names waits this long for newer ones.
const PATIENCE: Duration = Duration::from_secs(1);

/// Listed names by a key. Clones share them.
#[derive(Clone, Default)]
pub(in crate::remote) struct Names {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    listed: Mutex<HashMap<String, Listed>>,
    changed: Condvar,
}

/// The answer to a request for the names of a key.
pub(in crate::remote) enum Answer {
    /// Its names.
    Of(Vec<String>),
    /// The names of all keys.
    All(HashMap<String, Vec<String>>),
}

struct Listed {
    when: Instant,
    names: Vec<String>,
    /// When a thread has begun to ask again.
    asking: Option<Instant>,
}

impl Listed {
    fn is_new(&self) -> bool {
        self.when.elapsed() < KEPT
    }
}

impl Names {
    /// The names of `key`. `list` asks for them; if it takes long, or fails, the known ones are returned.
    pub fn get(
        &self,
        key: &str,
        list: impl FnOnce() -> Result<Answer> + Send + 'static,
    ) -> Result<Vec<String>> {
        let mut listed = self.shared.listed.lock();
        let Some(known) = listed.get_mut(key) else {
            drop(listed);
            let found = list()?;
            let mut listed = self.shared.listed.lock();
            note(&mut listed, key, found);
            return Ok(listed.get(key).map(|known| known.names.clone()).unwrap_or_default());
        };
        if known.is_new() {
            return Ok(known.names.clone());
        }
        let since = match known.asking {
            Some(since) => since,
            None => {
                let now = Instant::now();
                known.asking = Some(now);
                let (names, key) = (self.clone(), key.to_owned());
                let asked = std::thread::Builder::new().name("names".to_owned()).spawn(move || {
                    let found = list();
                    names.answered(&key, found);
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
        Ok(listed.get(key).map(|known| known.names.clone()).unwrap_or_default())
    }

    /// Notes the names of all keys.
    pub fn know(&self, names: HashMap<String, Vec<String>>) {
        note(&mut self.shared.listed.lock(), "", Answer::All(names));
    }

    fn answered(&self, key: &str, found: Result<Answer>) {
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

/// Notes the answer to a request for the names of `key`.
fn note(listed: &mut HashMap<String, Listed>, key: &str, found: Answer) {
    let when = Instant::now();
    let mut set = |key: String, names| {
        let known = listed.entry(key).or_insert(Listed { when, names: Vec::new(), asking: None });
        (known.when, known.names) = (when, names);
    };
    match found {
        Answer::Of(names) => set(key.to_owned(), names),
        Answer::All(mut all) => {
            set(key.to_owned(), all.remove(key).unwrap_or_default());
            all.into_iter().for_each(|(key, names)| set(key, names));
            // The others have none any more.
            for known in listed.values_mut().filter(|known| known.when != when) {
                (known.when, known.names) = (when, Vec::new());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::{Answer, KEPT, Names};
    use crate::model::Error;

    fn make_old(names: &Names) {
        let old = Instant::now().checked_sub(KEPT).unwrap();
        names.shared.listed.lock().values_mut().for_each(|known| known.when = old);
    }

    #[test]
    fn known_names_stay_while_nobody_answers_and_newer_ones_replace_them() {
        let names = Names::default();
        assert!(names.get("", || Err(Error::invalid("no answer"))).is_err());
        assert_eq!(names.get("", || Ok(Answer::Of(vec!["a".to_owned()]))).unwrap(), ["a"]);
        assert_eq!(names.get("", || panic!("they are new")).unwrap(), ["a"]);
        make_old(&names);
        assert_eq!(names.get("", || Err(Error::invalid("no answer"))).unwrap(), ["a"]);
        make_old(&names);
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
        let names = Names::default();
        let some = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        names.know([("".to_owned(), some(&["t", "u"])), ("t".to_owned(), some(&["a"]))].into());
        assert_eq!(names.get("t", || panic!("they are known")).unwrap(), ["a"]);
        assert_eq!(names.get("u", move || Ok(Answer::Of(some(&["b"])))).unwrap(), ["b"]);
        make_old(&names);
        let all = [("".to_owned(), some(&["u"])), ("u".to_owned(), some(&["c"]))].into();
        assert_eq!(names.get("", move || Ok(Answer::All(all))).unwrap(), ["u"]);
        assert_eq!(names.get("u", || panic!("they are new")).unwrap(), ["c"]);
        assert_eq!(names.get("t", || panic!("they are new")).unwrap(), [""; 0]);
    }
}
