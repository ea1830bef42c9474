//! Training: the merges, their order and their counts equal those of a trainer that counts all pairs again for each
//! merge; counts that are too large and invalid initial merges are rejected.
#![no_main]

use std::collections::HashMap;

use bpe::error::Error;
use bpe::merge::{MergeOptions, learn_merges};
use bpe::words::WordCounts;
use bpe_fuzz::draw::Draw;
use bpe_fuzz::naive::{self, Refusal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data);
    let num_merges = draw.byte().into();
    let min_count = draw.number();
    let initial = (0..draw.byte() % 48).map(|number| (symbol(&mut draw, number), symbol(&mut draw, number)));
    let options = MergeOptions { num_merges, min_count, initial: initial.collect() };

    let mut words = WordCounts::new();
    let mut expected: HashMap<Vec<u8>, u64> = HashMap::new();
    for _ in 0..draw.byte() % 64 {
        let (count, len) = (draw.number(), draw.byte() % 24);
        let word = draw.text(len.into(), &[]);
        words.add(&word, count).expect("there is memory");
        if !word.is_empty() && count > 0 {
            let total = expected.entry(word).or_default();
            *total = total.saturating_add(count);
        }
    }

    match (learn_merges(words, &options, &mut |_| true), naive::learn(&expected, &options)) {
        (Ok(merges), Ok(expected)) => assert_eq!(merges, expected),
        (Err(Error::CountOverflow), Err(Refusal::Overflow)) => {}
        (Err(Error::Vocabulary(_)), Err(Refusal::Dangling)) => {}
        (merges, expected) => panic!("{merges:?} instead of {expected:?}"),
    }
});

/// A symbol that initial merge `number` may use; now and then one that it may not.
fn symbol(draw: &mut Draw, number: u8) -> u32 {
    match draw.byte() {
        0..=63 => b"abest '\xc3\xa9"[draw.below(9)].into(),
        earlier @ 64..=247 if number > 0 => 256 + u32::from(earlier % number),
        248 => u32::MAX - u32::from(draw.byte() & 1),
        249 => 256 + u32::from(draw.byte()),
        byte => byte.into(),
    }
}
