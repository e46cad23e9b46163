//! Work on many items that waits for a remote most of the time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Items that are worked on at a time.
const AT_ONCE: usize = 64;

/// The results of `work` on each item, in the order of the items. 64 are worked on at a time, so that few that do not end for
/// long hold up no others.
pub(in crate::store) fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let each = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { break };
            let result = work(item);
            done.lock().push((place, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(items.len()) {
            let begun = thread::Builder::new().name("at once".to_owned()).spawn_scoped(scope, each);
            // The others do its part.
            if let Err(error) = begun {
                log::warn!("starting a thread: {error}");
                break;
            }
        }
        each();
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::{AT_ONCE, at_once};

    #[test]
    fn results_have_the_order_of_the_items_and_64_are_worked_on_at_a_time() {
        assert_eq!(at_once(&[0; 0], |item| *item), [0; 0]);
        let items: Vec<usize> = (0..2 * AT_ONCE).collect();
        // It opens only for all of them.
        let barrier = Barrier::new(AT_ONCE);
        let doubled = at_once(&items, |item| {
            barrier.wait();
            2 * item
        });
        assert!(doubled.iter().zip(&items).all(|(doubled, item)| *doubled == 2 * item));
        assert_eq!(doubled.len(), items.len());
    }
}
