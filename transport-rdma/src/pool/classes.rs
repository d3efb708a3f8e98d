//! Which lengths buffers have: a few, each about twice the one before.
//!
//! One length would waste most of each buffer; any length would leave holes between buffers that nothing fits
//! into. With doubling, a buffer is at most about twice as long as what was asked for.

/// Buffers are whole pages, so that each begins on one.
pub(super) const PAGE: usize = 4096;

/// A length of buffers, by its place in order of length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(pub(super) usize);

/// The lengths, the shortest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Classes(Vec<usize>);

impl Classes {
    /// `shortest` bytes doubled again and again, each with `extra` bytes more, so that what is a power of two plus a
    /// little does not need a buffer of the next one; and `longest`, rounded up to pages, as the last.
    pub(super) fn new(shortest: usize, extra: usize, longest: usize) -> Self {
        let longest = longest.clamp(1, usize::MAX - PAGE + 1).next_multiple_of(PAGE);
        let doubled = std::iter::successors(Some(shortest.max(PAGE)), |len| len.checked_mul(2));
        let lens = doubled.filter_map(|len| len.checked_add(extra)?.checked_next_multiple_of(PAGE));
        let lens = lens.take_while(|len| *len < longest).chain([longest]);
        Self(lens.collect())
    }

    /// The class of the shortest buffers that hold `len` bytes; `None` beyond the longest.
    pub(super) fn holding(&self, len: usize) -> Option<Class> {
        let class = self.0.partition_point(|chunk_len| *chunk_len < len);
        (class < self.0.len()).then_some(Class(class))
    }

    /// Lengths, the shortest first.
    pub(super) fn lens(&self) -> &[usize] {
        &self.0
    }

    /// Length of the longest buffers.
    pub(super) fn longest(&self) -> usize {
        *self.0.last().expect("there is always the longest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_double_up_to_the_longest() {
        let classes = Classes::new(4096, 0, 20_000);
        assert_eq!(classes.lens(), [4096, 8192, 16_384, 20_480]);
        assert_eq!(Classes::new(4096, 0, 8192).lens(), [4096, 8192]);
        assert_eq!(Classes::new(4096, 0, 1).lens(), [4096]);
        assert_eq!(Classes::new(65_536, 8192, 100_000).lens(), [73_728, 102_400]);
    }

    #[test]
    fn what_is_asked_for_fits_and_wastes_at_most_half() {
        let classes = Classes::new(4096, 0, 64 << 20);
        for len in [0, 1, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, 64 << 20] {
            let Class(class) = classes.holding(len).expect("within the longest");
            let chunk_len = classes.lens()[class];
            assert!(chunk_len >= len && chunk_len <= (2 * len).max(4096), "{len}: {chunk_len}");
        }
        assert_eq!(classes.holding((64 << 20) + 1), None);
    }

    #[test]
    fn a_power_of_two_with_a_head_and_slack_stays_in_its_class() {
        let classes = Classes::new(64 << 10, 8192, (64 << 20) + 4096);
        for power in 16..26 {
            let Class(class) =
                classes.holding((1 << power) + 100 + 4096).expect("within the longest");
            assert_eq!(classes.lens()[class], (1 << power) + 8192);
        }
    }

    #[test]
    fn the_longest_that_there_can_be_ends_the_doubling() {
        for longest in [usize::MAX - PAGE, usize::MAX] {
            let classes = Classes::new(1 << 62, 8192, longest);
            assert_eq!(classes.lens().len(), 3);
            assert_eq!(classes.longest(), usize::MAX - PAGE + 1);
        }
    }
}
