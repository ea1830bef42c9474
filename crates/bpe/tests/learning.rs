//! Merges are those of the definition, for any counts, any number of threads and any split into files.

mod texts;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use bpe::count::Counter;
use bpe::error::{Error, Result};
use bpe::merge::{Merge, MergeOptions, Symbol, learn_merges};
use bpe::pattern::Pattern;
use bpe::special::Specials;
use bpe::words::WordCounts;
use texts::{Random, SPECIALS};

type Words = BTreeMap<Vec<u8>, u64>;

/// Learn by the definition: count all pairs, join the most frequent one everywhere, repeat.
fn by_definition(
    words: &Words,
    initial: &[(Symbol, Symbol)],
    num_merges: usize,
    min_count: u64,
) -> Vec<Merge> {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    let mut now: Vec<(Vec<Symbol>, u64)> =
        words.iter().map(|(word, &count)| (word.iter().map(|&byte| byte.into()).collect(), count)).collect();
    let mut join = |tokens: &mut Vec<Vec<u8>>, left: Symbol, right: Symbol| {
        let made = tokens.len() as Symbol;
        tokens.push([tokens[left as usize].clone(), tokens[right as usize].clone()].concat());
        for (word, _) in &mut now {
            let mut position = 0;
            while position + 1 < word.len() {
                if word[position..position + 2] == [left, right] {
                    word.splice(position..position + 2, [made]);
                }
                position += 1;
            }
        }
        let mut counts: HashMap<(Symbol, Symbol), u64> = HashMap::new();
        for (word, count) in &now {
            for pair in word.windows(2) {
                *counts.entry((pair[0], pair[1])).or_default() += count;
            }
        }
        counts
    };
    let mut counts = HashMap::new();
    for (word, count) in words {
        for pair in word.windows(2) {
            *counts.entry((pair[0].into(), pair[1].into())).or_default() += count;
        }
    }
    for &(left, right) in initial {
        counts = join(&mut tokens, left, right);
    }
    let mut merges = Vec::new();
    while merges.len() < num_merges {
        let best = counts.iter().max_by_key(|&(&(left, right), &count)| {
            (count, tokens[left as usize].clone(), tokens[right as usize].clone())
        });
        let Some((&(left, right), &count)) = best.filter(|&(_, &count)| count >= min_count) else { break };
        merges.push(Merge { left, right, count });
        counts = join(&mut tokens, left, right);
    }
    merges
}

fn counts_of(words: &Words) -> Result<WordCounts> {
    let mut counts = WordCounts::new();
    for (word, &count) in words {
        counts.add(word, count)?;
    }
    Ok(counts)
}

/// Words of few letters, so that pairs tie, repeat and overlap.
fn random_words(random: &mut Random, num_letters: usize, max_len: usize, max_count: usize) -> Words {
    let num_words = 1 + random.below(12);
    let mut words = Words::new();
    for _ in 0..num_words {
        let len = 1 + random.below(max_len);
        let word = (0..len).map(|_| b'a' + random.below(num_letters) as u8).collect();
        *words.entry(word).or_default() += 1 + random.below(max_count) as u64;
    }
    words
}

#[test]
fn merges_are_those_of_the_definition() -> Result<()> {
    let mut random = Random::new(1);
    for round in 0..1500 {
        let (num_letters, max_len) = [(1, 40), (2, 12), (3, 20), (26, 6)][round % 4];
        let max_count = [1, 3, 1_000_000_000][round % 3];
        let words = random_words(&mut random, num_letters, max_len, max_count);
        let options =
            MergeOptions { num_merges: 40, min_count: 1 + random.below(3) as u64, initial: Vec::new() };
        let merges = learn_merges(counts_of(&words)?, &options, &mut |_| true)?;
        assert_eq!(merges, by_definition(&words, &[], 40, options.min_count), "{words:?}");
    }
    Ok(())
}

#[test]
fn learning_continues_from_existing_merges() -> Result<()> {
    let mut random = Random::new(2);
    for _ in 0..500 {
        let source = random_words(&mut random, 3, 12, 5);
        let words = random_words(&mut random, 3, 12, 5);
        let first = MergeOptions { num_merges: random.below(12), ..Default::default() };
        let learnt = learn_merges(counts_of(&source)?, &first, &mut |_| true)?;
        let initial: Vec<_> = learnt.iter().map(|merge| (merge.left, merge.right)).collect();
        let options = MergeOptions { num_merges: 12, min_count: 1, initial: initial.clone() };
        let merges = learn_merges(counts_of(&words)?, &options, &mut |_| true)?;
        assert_eq!(merges, by_definition(&words, &initial, 12, 1), "{words:?} after {initial:?}");
    }
    Ok(())
}

#[test]
fn a_merge_of_a_missing_token_is_an_error() -> Result<()> {
    for initial in [vec![(97, 256)], vec![(u32::MAX, 0)], vec![(97, 98), (256, 257)]] {
        let options = MergeOptions { num_merges: 5, min_count: 1, initial };
        let outcome = learn_merges(counts_of(&Words::from([(b"ab".to_vec(), 1)]))?, &options, &mut |_| true);
        assert!(matches!(outcome, Err(Error::Vocabulary(_))));
    }
    Ok(())
}

#[test]
fn initial_merges_that_do_not_occur_need_no_memory() -> Result<()> {
    let mut words = WordCounts::new();
    words.add(b"aaab", 2)?;
    // aa, aaaa, and so on: the last would have 2^100 bytes.
    let doubling = (0..100).map(|number| if number == 0 { (97, 97) } else { (255 + number, 255 + number) });
    let options = MergeOptions { num_merges: 2, min_count: 1, initial: doubling.collect() };
    let merges = learn_merges(words, &options, &mut |_| true)?;
    // "aa a b": of two pairs that occur as often, (aa, a) has the greater bytes.
    let expected = [Merge { left: 256, right: 97, count: 2 }, Merge { left: 356, right: 98, count: 2 }];
    assert_eq!(merges, expected);
    Ok(())
}

#[test]
fn counts_that_cannot_be_summed_are_an_error() -> Result<()> {
    let words = Words::from([(b"ab".to_vec(), u64::MAX / 3), (b"cd".to_vec(), u64::MAX / 3)]);
    let options = MergeOptions { num_merges: 5, ..Default::default() };
    assert!(matches!(learn_merges(counts_of(&words)?, &options, &mut |_| true), Err(Error::CountOverflow)));
    Ok(())
}

#[test]
fn counting_does_not_depend_on_threads_or_files() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("bpe-learning-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut random = Random::new(3);
    for expression in ["gpt2", "gpt4", r"[^ ]+ [^ ]+|\s"] {
        let documents: Vec<Vec<u8>> =
            (0..40).map(|_| [random.text(4000), b"|END|".to_vec()].concat()).collect();
        let specials =
            || Specials::new([SPECIALS, &["|END|"]].concat().iter().map(|&token| token.into()).collect());
        let mut expected = Counter::new(Pattern::parse(expression)?, specials()?);
        expected.add_text(&documents.concat())?;
        for (num_files, num_threads) in [(1, 1), (1, 2), (1, 3), (1, 8), (7, 1), (7, 3), (40, 8)] {
            let mut paths: Vec<PathBuf> = Vec::new();
            for (number, part) in documents.chunks(documents.len().div_ceil(num_files)).enumerate() {
                paths.push(folder.join(number.to_string()));
                std::fs::write(&paths[number], part.concat())?;
            }
            let mut counter = Counter::new(Pattern::parse(expression)?, specials()?);
            counter.add_files(&paths, num_threads, &mut |_| true)?;
            assert!(
                sorted(counter.counts()) == sorted(expected.counts()),
                "{num_files} files, {num_threads} threads"
            );
            assert_eq!(counter.stats().num_bytes, expected.stats().num_bytes);
            assert_eq!(counter.stats().num_words, expected.stats().num_words);
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn sorted(counts: &WordCounts) -> Words {
    let mut words = Words::new();
    counts.for_each(|word, count| {
        let before = words.insert(word.to_vec(), count);
        assert_eq!(before, None, "no word is listed twice");
    });
    words
}

#[test]
fn a_table_of_many_words_contains_each_of_them() -> Result<()> {
    let mut random = Random::new(4);
    let mut expected = Words::new();
    let (mut left, mut right) = (WordCounts::new(), WordCounts::new());
    for number in 0..100_000 {
        let len = 1 + random.below(20);
        let word: Vec<u8> = (0..len).map(|_| random.below(4) as u8).collect();
        if number % 3 == 0 {
            left.add(&word, 2)?
        } else {
            right.add(&word, 2)?
        }
        *expected.entry(word).or_default() += 2;
    }
    left.merge(right)?;
    assert_eq!(left.num_distinct(), expected.len());
    assert_eq!(sorted(&left), expected);
    Ok(())
}

#[test]
fn stopping_the_count_leaves_no_partial_counts() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("bpe-stopped-{}", std::process::id()));
    std::fs::write(&path, "low lower lowest")?;
    let mut counter = Counter::new(Pattern::Gpt2, Specials::new(Vec::new())?);
    counter.add_text(b"before")?;
    let outcome = counter.add_files(std::slice::from_ref(&path), 2, &mut |_| false);
    assert!(matches!(outcome, Err(Error::Interrupted)));
    let outcome = counter.add_files(&[path.clone(), "missing".into()], 2, &mut |_| true);
    assert!(matches!(outcome, Err(Error::File { .. })));
    assert_eq!(sorted(counter.counts()), Words::from([(b"before".to_vec(), 1)]));
    std::fs::remove_file(&path)?;
    Ok(())
}

#[test]
fn parts_of_a_file_have_the_counts_of_the_whole() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("bpe-parts-{}", std::process::id()));
    std::fs::write(&path, "low lower lowest")?;
    let mut counter = Counter::new(Pattern::Gpt2, Specials::new(Vec::new())?);
    counter.add_file_part(&path, 9..16)?;
    counter.add_file_part(&path, 0..9)?;
    assert!(matches!(counter.add_file_part(&path, 9..17), Err(Error::File { .. })));
    let words = ["low", " lower", " lowest"].map(|word| (word.into(), 1));
    assert_eq!(sorted(counter.counts()), Words::from(words));
    assert_eq!(counter.stats().num_bytes, 16);
    std::fs::remove_file(&path)?;
    Ok(())
}
