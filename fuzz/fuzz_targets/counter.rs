//! Counting: the word counts of texts and files equal those of a map of all pre-tokens, for any number of threads.
#![no_main]

use std::collections::HashMap;
use std::path::PathBuf;

use bpe::count::Counter;
use bpe::pattern::Pattern;
use bpe::special::Specials;
use bpe::words::WordCounts;
use bpe_fuzz::draw::{Draw, repeat};
use bpe_fuzz::naive::{self, Part};
use libfuzzer_sys::fuzz_target;

/// Enough for several of the chunks that files and texts are counted in.
const LONG: usize = 200 << 10;

fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data);
    let pattern = draw.pattern();
    let tokens = draw.specials(3);
    let specials = Specials::new(tokens.clone()).expect("no special token is empty");
    let (ready_made, count) = (draw.text(20, &[]), draw.number());
    let is_long = draw.rarely(128);
    let numbered = draw.once_in(2);
    let num_threads = 1 + draw.below(3);
    let from_files = is_long || draw.once_in(8);
    let len = draw.below(64);
    let mut texts = vec![draw.text(len, &tokens), draw.rest(&tokens)];
    if is_long {
        texts[1] = repeat(&texts[1], LONG, numbered);
    }

    let mut expected: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut num_words = 0;
    for text in &texts {
        let definition = naive::definition(&pattern, text);
        for part in naive::pre_tokens(definition, &tokens, text).expect("these expressions do not give up") {
            if let Part::Text(word) = part {
                *expected.entry(word).or_default() += 1;
                num_words += 1;
            }
        }
    }

    let mut counter = Counter::new(pattern.clone(), specials.clone());
    texts.iter().for_each(|text| counter.add_text(text).expect("these expressions do not give up"));
    assert_eq!(counter.stats().num_words, num_words);
    assert_eq!(counter.stats().num_bytes, texts.iter().map(|text| text.len() as u64).sum());
    assert_eq!(gather(counter.counts()), expected);

    if from_files {
        let paths: Vec<PathBuf> = (0..texts.len())
            .map(|n| std::env::temp_dir().join(format!("bpe-fuzz-{}-{n}", std::process::id())))
            .collect();
        for (path, text) in paths.iter().zip(&texts) {
            std::fs::write(path, text).expect("the folder for temporary files is writable");
        }
        let mut counter = Counter::new(pattern.clone(), specials.clone());
        let outcome = counter.add_files(&paths, num_threads, &mut |_| true);
        paths.iter().for_each(|path| std::fs::remove_file(path).expect("we wrote it"));
        outcome.expect("these expressions do not give up");
        assert_eq!(counter.stats().num_words, num_words);
        assert_eq!(gather(counter.counts()), expected);
    }

    // Counts of the parts, and a ready-made one of any size in each, add up without wrapping.
    let mut parts = texts.iter().map(|text| {
        let mut counter = Counter::new(pattern.clone(), specials.clone());
        counter.add_word(&ready_made, count).expect("there is memory");
        counter.add_text(text).expect("these expressions do not give up");
        counter.into_counts()
    });
    let mut sum = parts.next().expect("there are two or more");
    parts.for_each(|part| sum.merge(part).expect("there is memory"));
    if !ready_made.is_empty() && count > 0 {
        let total = expected.entry(ready_made).or_default();
        texts.iter().for_each(|_| *total = total.saturating_add(count));
    }
    assert_eq!(gather(&sum), expected);

    if let (Pattern::Gpt2 | Pattern::Gpt4, Some((near, texts))) = (&pattern, draw.at_edges()) {
        for text in texts {
            let filler = &text[..text.len() - near.len()];
            let definition = naive::definition(&pattern, &near);
            let words = naive::pre_tokens(definition, &[], &near).expect("these expressions do not give up");
            let words = words.into_iter().filter_map(|part| match part {
                Part::Text(word) => Some(word),
                Part::Special(..) => None,
            });
            let mut expected: HashMap<Vec<u8>, u64> = HashMap::new();
            for word in filler.iter().map(|&byte| vec![byte]).chain(words) {
                *expected.entry(word).or_default() += 1;
            }
            let specials = Specials::new(Vec::new()).expect("there are none");
            let mut counter = Counter::new(pattern.clone(), specials);
            counter.add_text(&text).expect("our scanners cannot fail");
            assert_eq!(gather(counter.counts()), expected);
        }
    }
});

fn gather(counts: &WordCounts) -> HashMap<Vec<u8>, u64> {
    let mut gathered = HashMap::new();
    counts.for_each(|word, count| {
        assert!(gathered.insert(word.to_vec(), count).is_none(), "{word:?} is counted in two places");
    });
    assert_eq!(gathered.len(), counts.num_distinct());
    gathered
}
