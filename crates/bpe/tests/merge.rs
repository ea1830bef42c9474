//! Learning merges.

use bpe::error::Result;
use bpe::merge::{Merge, MergeOptions, learn_merges};
use bpe::words::WordCounts;

#[test]
fn initial_merges_that_do_not_occur_cost_no_memory() -> Result<()> {
    let mut words = WordCounts::new();
    words.add(b"aaab", 2);
    // aa, aaaa, and so on: the last would have 2^100 bytes.
    let doubling = (0..100).map(|number| if number == 0 { (97, 97) } else { (255 + number, 255 + number) });
    let options = MergeOptions { num_merges: 2, min_count: 1, initial: doubling.collect() };
    let merges = learn_merges(words, &options, &mut |_| true)?;
    // "aa a b": of two pairs that occur as often, (aa, a) has the greater bytes.
    let expected = [Merge { left: 256, right: 97, count: 2 }, Merge { left: 356, right: 98, count: 2 }];
    assert_eq!(merges, expected);
    Ok(())
}
