//! Names of tenants and collections, which a mount keeps for a while. While the remote does not answer, those that
//! are known stay.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::model::{Error, Result};

/// Names are asked for again after this time.
const KEPT: Duration = Duration::from_secs(10);
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
        list: impl FnOnce() -> Result<Vec<String>> + Send + 'static,
    ) -> Result<Vec<String>> {
        let mut listed = self.shared.listed.lock();
        let Some(known) = listed.get_mut(key) else {
            drop(listed);
            let names = list()?;
            let new = Listed { when: Instant::now(), names: names.clone(), asking: None };
            self.shared.listed.lock().insert(key.to_owned(), new);
            return Ok(names);
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

    fn answered(&self, key: &str, found: Result<Vec<String>>) {
        let mut listed = self.shared.listed.lock();
        if let Some(known) = listed.get_mut(key) {
            (known.when, known.asking) = (Instant::now(), None);
            match found {
                Ok(names) => known.names = names,
                Err(error) => log::warn!("the names that were listed before are shown: {error}"),
            }
        }
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::{KEPT, Names};
    use crate::model::Error;

    fn make_old(names: &Names) {
        let old = Instant::now().checked_sub(KEPT).unwrap();
        names.shared.listed.lock().values_mut().for_each(|known| known.when = old);
    }

    #[test]
    fn known_names_stay_while_nobody_answers_and_newer_ones_replace_them() {
        let names = Names::default();
        assert!(names.get("", || Err(Error::invalid("no answer"))).is_err());
        assert_eq!(names.get("", || Ok(vec!["a".to_owned()])).unwrap(), ["a"]);
        assert_eq!(names.get("", || panic!("they are new")).unwrap(), ["a"]);
        make_old(&names);
        assert_eq!(names.get("", || Err(Error::invalid("no answer"))).unwrap(), ["a"]);
        make_old(&names);
        let (answer, answered) = mpsc::channel();
        let begun = Instant::now();
        let late = move || Ok(answered.recv().unwrap());
        assert_eq!(names.get("", late).unwrap(), ["a"]);
        assert_eq!(names.get("", || panic!("a thread asks")).unwrap(), ["a"]);
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        answer.send(vec!["b".to_owned()]).unwrap();
        while names.shared.listed.lock().values().any(|known| known.asking.is_some()) {
            std::thread::yield_now();
        }
        assert_eq!(names.get("", || panic!("they are new")).unwrap(), ["b"]);
    }
}
