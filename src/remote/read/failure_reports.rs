//! Tells users of failures, each once: every read may fail for the same reason.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::remote::client::failure::Failure;

/// A topic is told of again after this time.
const TOLD_EVERY: Duration = Duration::from_secs(600);
/// Topics that are known.
const TOPICS_MAX: usize = 1000;
/// The topic of a remote that does not answer, whatever was asked of it.
const AWAY: &str = "away";
/// The topic of a remote that refuses.
const DENIED: &str = "denied";

/// Tells users something: the path, and the text.
pub type Tell = Box<dyn Fn(&str, &str) + Send + Sync>;

/// Tells users, but not of the same topic again and again.
pub(in crate::remote) struct FailureReports {
    tell: Tell,
    /// When a topic was told of last.
    topics: Mutex<HashMap<String, Instant>>,
}

impl FailureReports {
    /// Tells by this function.
    pub fn new(tell: Tell) -> FailureReports {
        FailureReports { tell, topics: Mutex::default() }
    }

    /// Tells a text about a path, unless it was told a while ago.
    pub fn text(&self, path: &str, text: &str) {
        self.about(&format!("{path}: {text}"), path, text);
    }

    /// Tells of a failure of a remote at a path. One that is away or refuses is told of once, not once for each
    /// request.
    pub fn failure(&self, remote: &str, path: &str, failure: &Failure, text: &str) {
        match failure {
            failure if failure.is_transient() => self.about(&format!("{AWAY} {remote}"), "", text),
            Failure::Denied(_) | Failure::NoCredentials(_) | Failure::NoBucket(_) => {
                self.about(&format!("{DENIED} {remote}"), "", text)
            }
            // Of a snapshot that was collected, or a remote that has lost data, the first piece is told of.
            Failure::NotFound => self.about(&format!("{path} is gone"), path, text),
            _ => self.text(path, text),
        }
    }

    /// A remote has answered: if it fails again, that is told.
    pub fn answered(&self, remote: &str) {
        let mut topics = self.topics.lock();
        if !topics.is_empty() {
            topics.remove(&format!("{AWAY} {remote}"));
            topics.remove(&format!("{DENIED} {remote}"));
        }
    }

    fn about(&self, topic: &str, path: &str, text: &str) {
        {
            let mut topics = self.topics.lock();
            if topics.get(topic).is_some_and(|when| when.elapsed() < TOLD_EVERY) {
                return;
            }
            if topics.len() >= TOPICS_MAX {
                topics.clear();
            }
            topics.insert(topic.to_owned(), Instant::now());
        }
        (self.tell)(path, text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::FailureReports;
    use crate::remote::client::failure::Failure;

    #[test]
    fn a_remote_that_is_away_is_told_of_once_until_it_has_answered() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let noted = lines.clone();
        let told =
            FailureReports::new(Box::new(move |path, text| noted.lock().push(format!("{path}|{text}"))));
        let away = Failure::Transient("refused".to_owned());
        for piece in ["piece 1", "piece 2"] {
            told.failure("s3://b", "t/c", &away, piece);
            told.failure("s3://b", "t/d", &Failure::Overload("503".to_owned()), piece);
            told.failure("s3://b", "t/c", &Failure::NotFound, piece);
            told.failure("s3://b", "t/c", &Failure::WrongBytes, piece);
            told.text("t/c", "no variant");
        }
        assert_eq!(
            *lines.lock(),
            ["|piece 1", "t/c|piece 1", "t/c|piece 1", "t/c|no variant", "t/c|piece 2"]
        );
        told.answered("s3://b");
        told.failure("s3://b", "t/c", &away, "piece 3");
        assert_eq!(lines.lock().last().unwrap(), "|piece 3");
    }
}
