//! Values that are remembered while they are used: a bound on their number and on their bytes.

use std::collections::VecDeque;

/// Values by key. The least recently used goes first.
pub(super) struct Recent<K, V> {
    /// The most recently used last.
    all: VecDeque<(K, V, usize)>,
    count_max: usize,
    bytes_max: usize,
}

impl<K, V> Recent<K, V> {
    /// Remembers so many values, of so many bytes together; one value may have more.
    pub const fn new(count_max: usize, bytes_max: usize) -> Recent<K, V> {
        Recent { all: VecDeque::new(), count_max, bytes_max }
    }

    /// The most recently used value with a key that fits. It is used now.
    pub fn find(&mut self, is: impl Fn(&K) -> bool) -> Option<&V> {
        let place = self.all.iter().rposition(|(key, ..)| is(key))?;
        let found = self.all.remove(place)?;
        self.all.push_back(found);
        self.all.back().map(|(_, value, _)| value)
    }

    /// Forgets the values whose keys do not fit.
    pub fn retain(&mut self, is: impl Fn(&K) -> bool) {
        self.all.retain(|(key, ..)| is(key));
    }

    /// Adds a value of so many bytes, and forgets others for it.
    pub fn add(&mut self, key: K, value: V, bytes: usize) {
        self.all.push_back((key, value, bytes));
        let mut sum: usize = self.all.iter().map(|(.., bytes)| bytes).sum();
        while self.all.len() > 1 && (self.all.len() > self.count_max || sum > self.bytes_max) {
            sum -= self.all.pop_front().map_or(0, |(.., bytes)| bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn the_least_recently_used_value_goes_first() {
        let mut recent = Recent::new(3, 100);
        for key in 0..3 {
            recent.add(key, key * 10, 20);
        }
        assert_eq!(recent.find(|key| *key == 0), Some(&0));
        recent.add(3, 30, 20);
        assert_eq!(recent.find(|key| *key == 1), None, "1 was used before 0 and 2");
        // Bytes count too, except those of the last value.
        recent.add(4, 40, 70);
        assert_eq!(
            [2, 0, 3, 4].map(|wanted| recent.find(|key| *key == wanted).copied()),
            [None, None, Some(30), Some(40)]
        );
        recent.add(5, 50, 1000);
        assert_eq!((recent.all.len(), recent.find(|key| *key == 4)), (1, None));
        recent.retain(|key| *key != 5);
        assert_eq!(recent.find(|_| true), None);
    }
}
