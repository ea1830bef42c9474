//! Which of the pairs that occur equally often comes next.

use crate::error::OutOfMemory;
use crate::lowlevel::push;

/// The pairs that share the highest count: a binary heap whose order is given from outside, since it lies in
/// the tokens' bytes.
#[derive(Default)]
pub(super) struct Ties {
    /// The count that they share.
    pub(super) count: u64,
    heap: Vec<u32>,
}

impl Ties {
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
    }

    /// Add a pair; `order` must be called before anything is drawn.
    pub(super) fn push_unordered(&mut self, pair: u32) -> Result<(), OutOfMemory> {
        push(&mut self.heap, pair)
    }

    pub(super) fn order(&mut self, greater: impl Fn(u32, u32) -> bool) {
        for index in (0..self.heap.len() / 2).rev() {
            self.sift_down(index, &greater);
        }
    }

    pub(super) fn push(&mut self, pair: u32, greater: impl Fn(u32, u32) -> bool) -> Result<(), OutOfMemory> {
        push(&mut self.heap, pair)?;
        let mut index = self.heap.len() - 1;
        while index > 0 {
            let parent = (index - 1) / 2;
            if !greater(self.heap[index], self.heap[parent]) {
                break;
            }
            self.heap.swap(index, parent);
            index = parent;
        }
        Ok(())
    }

    pub(super) fn pop(&mut self, greater: impl Fn(u32, u32) -> bool) -> Option<u32> {
        let last = self.heap.len().checked_sub(1)?;
        self.heap.swap(0, last);
        let top = self.heap.pop();
        self.sift_down(0, &greater);
        top
    }

    fn sift_down(&mut self, mut index: usize, greater: &impl Fn(u32, u32) -> bool) {
        loop {
            let child = 2 * index + 1;
            if child >= self.heap.len() {
                return;
            }
            let right = child + 1;
            let larger = if right < self.heap.len() && greater(self.heap[right], self.heap[child]) {
                right
            } else {
                child
            };
            if !greater(self.heap[larger], self.heap[index]) {
                return;
            }
            self.heap.swap(index, larger);
            index = larger;
        }
    }
}
