//! Examples small enough to check by hand.

use super::*;
use crate::words::WordCounts;

/// Learn merges; return the two halves of each with its count: `"lo w 7"`.
fn learn(words: &[(&str, u64)], options: &MergeOptions) -> Result<Vec<String>> {
    let mut counts = WordCounts::new();
    for (word, count) in words {
        counts.add(word.as_bytes(), *count)?;
    }
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    let spell = |tokens: &mut Vec<Vec<u8>>, left: Symbol, right: Symbol| {
        let token = [tokens[left as usize].as_slice(), &tokens[right as usize]].concat();
        let spelling = format!(
            "{} {}",
            String::from_utf8_lossy(&tokens[left as usize]),
            String::from_utf8_lossy(&tokens[right as usize])
        );
        tokens.push(token);
        spelling
    };
    let merges = learn_merges(counts, options, &mut |_| true)?;
    for &(left, right) in &options.initial {
        spell(&mut tokens, left, right);
    }
    Ok(merges
        .iter()
        .map(|merge| format!("{} {}", spell(&mut tokens, merge.left, merge.right), merge.count))
        .collect())
}

fn all() -> MergeOptions {
    MergeOptions { num_merges: usize::MAX, ..Default::default() }
}

#[test]
fn the_worked_example_is_learned_completely() -> Result<()> {
    let words = [("low", 5), ("lower", 2), ("widest", 3), ("newest", 6)];
    let merges = [
        "s t 9",
        "e st 9",
        "o w 7",
        "l ow 7",
        "w est 6",
        "n e 6",
        "ne west 6",
        "w i 3",
        "wi d 3",
        "wid est 3",
        "low e 2",
        "lowe r 2",
    ];
    assert_eq!(learn(&words, &all())?, merges);
    assert_eq!(learn(&words, &MergeOptions { min_count: 6, ..all() })?, merges[..7]);
    assert_eq!(learn(&words, &MergeOptions { num_merges: 3, ..all() })?, merges[..3]);
    assert!(learn(&words, &MergeOptions { min_count: u64::MAX, ..all() })?.is_empty());
    Ok(())
}

#[test]
fn overlapping_pairs_count_each_time_and_are_joined_from_left_to_right() -> Result<()> {
    assert_eq!(learn(&[("aaa", 5)], &all())?, ["a a 10", "aa a 5"]);
    assert_eq!(learn(&[("aaaa", 5)], &all())?, ["a a 15", "aa aa 5"]);
    assert_eq!(learn(&[("aaaaaaa", 1)], &all())?, ["a a 6", "aa aa 2", "aaaa aa 1", "aaaaaa a 1"]);
    assert_eq!(learn(&[("ababab", 1)], &all())?, ["a b 3", "ab ab 2", "abab ab 1"]);
    Ok(())
}

#[test]
fn of_equally_frequent_pairs_the_greater_bytes_are_merged_first() -> Result<()> {
    assert_eq!(learn(&[("ab", 7), ("ac", 7), ("zz", 6)], &all())?, ["a c 7", "a b 7", "z z 6"]);
    // The new pair (b, cd) has the same count as an older one: the bytes decide, not the age.
    assert_eq!(learn(&[("bcd", 2), ("ax", 2)], &all())?, ["c d 2", "b cd 2", "a x 2"]);
    assert_eq!(learn(&[("xab", 2), ("pq", 2), ("ab", 1)], &all())?, ["a b 3", "x ab 2", "p q 2"]);
    Ok(())
}

#[test]
fn rare_pairs_are_found_although_they_are_not_tracked_at_first() -> Result<()> {
    let words = [("ab", 1_000_000), ("cd", 900), ("cde", 3), ("fg", 1)];
    assert_eq!(learn(&words, &all())?, ["a b 1000000", "c d 903", "cd e 3", "f g 1"]);
    Ok(())
}

#[test]
fn existing_merges_come_first_and_are_not_repeated() -> Result<()> {
    let options = MergeOptions { initial: vec![(97, 98), (256, 99), (120, 121)], ..all() };
    assert_eq!(learn(&[("abcd", 2), ("ab", 3), ("bc", 1)], &options)?, ["abc d 2", "b c 1"]);
    let unknown = MergeOptions { initial: vec![(97, 256)], ..all() };
    assert!(matches!(learn(&[], &unknown), Err(Error::Vocabulary(_))));
    Ok(())
}

#[test]
fn no_merge_is_learned_from_single_bytes() -> Result<()> {
    assert!(learn(&[], &all())?.is_empty());
    assert!(learn(&[("a", 9), ("b", 9)], &all())?.is_empty());
    Ok(())
}

#[test]
fn a_walk_over_a_long_text_can_be_ended() -> Result<()> {
    let mut words = WordCounts::new();
    words.add(&vec![b'a'; 5 << 20], 1)?;
    let text = Text::new(&words)?;
    let mut num_beats = 0;
    let mut beat = || {
        num_beats += 1;
        if num_beats < 3 { Ok(()) } else { Err(Error::Interrupted) }
    };
    let mut num_pairs = 0;
    let outcome = text.walk_pairs(&[1; 256], &mut beat, |_, _, _| {
        num_pairs += 1;
        Ok(())
    });
    assert!(matches!(outcome, Err(Error::Interrupted)));
    assert!((2 << 20..4 << 20).contains(&num_pairs));
    Ok(())
}
