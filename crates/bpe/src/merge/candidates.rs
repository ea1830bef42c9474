//! The pairs that share the highest count, and the rule that selects one of them.

use super::pairs::Pair;
use crate::error::OutOfMemory;
use crate::lowlevel::push;

/// The tie rule: of the pairs with the highest count, the pair with the greatest key is merged first. The key
/// is (left bytes, right bytes). `tie_key` in `src/bytewright/tokenizer/reference.py` defines the same rule.
#[inline]
fn tie_key<'t>(pairs: &[Pair], tokens: &'t [Box<[u8]>], pair: u32) -> (&'t [u8], &'t [u8]) {
    let Pair { left, right, .. } = pairs[pair as usize];
    (&tokens[left as usize], &tokens[right as usize])
}

/// A binary heap of pairs with equal counts. The pair with the greatest `tie_key` is on top.
#[derive(Default)]
pub(super) struct Candidates {
    /// The count of all pairs in the heap.
    pub(super) count: u64,
    heap: Vec<u32>,
}

impl Candidates {
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
    }

    /// Add a pair without restoring the heap order; call `restore_order` before `push` or `pop`.
    pub(super) fn push_unordered(&mut self, pair: u32) -> Result<(), OutOfMemory> {
        push(&mut self.heap, pair)
    }

    pub(super) fn restore_order(&mut self, pairs: &[Pair], tokens: &[Box<[u8]>]) {
        for index in (0..self.heap.len() / 2).rev() {
            self.sift_down(index, pairs, tokens);
        }
    }

    pub(super) fn push(
        &mut self,
        pair: u32,
        pairs: &[Pair],
        tokens: &[Box<[u8]>],
    ) -> Result<(), OutOfMemory> {
        push(&mut self.heap, pair)?;
        let mut index = self.heap.len() - 1;
        while index > 0 {
            let parent = (index - 1) / 2;
            if !self.is_greater(index, parent, pairs, tokens) {
                break;
            }
            self.heap.swap(index, parent);
            index = parent;
        }
        Ok(())
    }

    pub(super) fn pop(&mut self, pairs: &[Pair], tokens: &[Box<[u8]>]) -> Option<u32> {
        let last = self.heap.len().checked_sub(1)?;
        self.heap.swap(0, last);
        let top = self.heap.pop();
        self.sift_down(0, pairs, tokens);
        top
    }

    fn sift_down(&mut self, mut index: usize, pairs: &[Pair], tokens: &[Box<[u8]>]) {
        loop {
            let child = 2 * index + 1;
            if child >= self.heap.len() {
                return;
            }
            let right = child + 1;
            let larger = if right < self.heap.len() && self.is_greater(right, child, pairs, tokens) {
                right
            } else {
                child
            };
            if !self.is_greater(larger, index, pairs, tokens) {
                return;
            }
            self.heap.swap(index, larger);
            index = larger;
        }
    }

    /// Whether the pair at heap index `a` is merged before the pair at `b`.
    #[inline]
    fn is_greater(&self, a: usize, b: usize, pairs: &[Pair], tokens: &[Box<[u8]>]) -> bool {
        tie_key(pairs, tokens, self.heap[a]) > tie_key(pairs, tokens, self.heap[b])
    }
}
