//! The definitions in their simplest form.

use std::collections::HashMap;
use std::sync::LazyLock;

use bpe::error::Result;
use bpe::merge::{Merge, MergeOptions, Symbol};
use bpe::pattern::Pattern;
use bpe::unicode::{Class, char_at};

use crate::draw::{GPT2, GPT4, WINDOW};

/// The ends of the pre-tokens of a text. Asserts that they cover the text without gaps, overlaps or empty
/// pre-tokens.
pub fn ends(pattern: &Pattern, text: &[u8]) -> Result<Vec<usize>> {
    let mut ends = Vec::new();
    pattern.scan(text, |base, group| {
        ends.extend(group.iter().map(|&end| base + end as usize));
        Ok(())
    })?;
    assert!(ends.first().is_none_or(|&first| first > 0), "an empty pre-token at the beginning");
    assert!(ends.is_sorted_by(|a, b| a < b), "pre-tokens do not follow each other: {ends:?}");
    assert_eq!(ends.last().copied().unwrap_or(0), text.len(), "the pre-tokens are not the whole text");
    Ok(ends)
}

/// The regular expression of a named pattern if both classify all characters of the text alike, else the pattern
/// itself. For a long text it is the pattern, because the expressions are slow.
pub fn definition<'p>(pattern: &'p Pattern, text: &[u8]) -> &'p Pattern {
    static DEFINITIONS: LazyLock<[Pattern; 2]> =
        LazyLock::new(|| [GPT2, GPT4].map(|spelled_out| Pattern::parse(spelled_out).expect("it is valid")));
    match pattern {
        _ if text.len() > 2 * WINDOW => pattern,
        Pattern::Gpt2 if agreed(text) => &DEFINITIONS[0],
        Pattern::Gpt4 if agreed(text) => &DEFINITIONS[1],
        _ => pattern,
    }
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A pre-token, or text between special tokens.
    Text(Vec<u8>),
    /// A special token: its index and its position.
    Special(usize, usize),
}

/// Split a text at special tokens by trying all of them at every position.
pub fn split(specials: &[String], text: &[u8]) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut done, mut position) = (0, 0);
    let begins = |index: usize, text: &[u8]| {
        let special = specials[index].as_bytes();
        special[0] == text[0] && text.starts_with(special)
    };
    while position < text.len() {
        let found = (0..specials.len())
            .filter(|&index| begins(index, &text[position..]))
            .max_by_key(|&index| (specials[index].len(), std::cmp::Reverse(index)));
        let Some(index) = found else {
            position += 1;
            continue;
        };
        if position > done {
            parts.push(Part::Text(text[done..position].to_vec()));
        }
        parts.push(Part::Special(index, position));
        position += specials[index].len();
        done = position;
    }
    if done < text.len() {
        parts.push(Part::Text(text[done..].to_vec()));
    }
    parts
}

/// Split a text into special tokens and pre-tokens.
pub fn pre_tokens(pattern: &Pattern, specials: &[String], text: &[u8]) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for part in split(specials, text) {
        let Part::Text(text) = part else {
            parts.push(part);
            continue;
        };
        let mut start = 0;
        for end in ends(pattern, &text)? {
            parts.push(Part::Text(text[start..end].to_vec()));
            start = end;
        }
    }
    Ok(parts)
}

/// Whether the crate and the regular expression engine, which may have different versions of Unicode, agree on all
/// characters of a text.
pub fn agreed(text: &[u8]) -> bool {
    static AGREED: LazyLock<Vec<bool>> = LazyLock::new(|| {
        let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
        let mut agreed = vec![true; 0x110000];
        for (class, expression) in
            [(Class::Letter, r"\p{L}"), (Class::Number, r"\p{N}"), (Class::Space, r"\s")]
        {
            let regex = fancy_regex::Regex::new(expression).expect("a class");
            let mut theirs = vec![false; 0x110000];
            for found in regex.find_iter(&all) {
                let found = found.expect("a class needs no backtracking").as_str();
                found.chars().for_each(|character| theirs[character as usize] = true);
            }
            for (code, theirs) in (0..).zip(theirs) {
                agreed[code as usize] &= theirs == (Class::of(code) == class);
            }
        }
        agreed
    });
    let mut position = 0;
    while let Some(found) = char_at(text, position) {
        if found.code.is_some_and(|code| !AGREED[code as usize]) {
            return false;
        }
        position += found.len;
    }
    true
}

/// Join all occurrences of a pair from left to right.
fn join(symbols: &mut Vec<Symbol>, (left, right): (Symbol, Symbol), made: Symbol) {
    let (mut position, mut num_kept) = (0, 0);
    while position < symbols.len() {
        let found = symbols[position] == left && symbols.get(position + 1) == Some(&right);
        symbols[num_kept] = if found { made } else { symbols[position] };
        num_kept += 1;
        position += if found { 2 } else { 1 };
    }
    symbols.truncate(num_kept);
}

/// Apply merges, given as symbols, to a word in order.
pub fn merge_word(merges: &[(Symbol, Symbol)], word: &[u8]) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = word.iter().map(|&byte| byte.into()).collect();
    for (made, &pair) in (256..).zip(merges) {
        join(&mut symbols, pair, made);
    }
    symbols
}

/// The reason why learning fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The counts are too large.
    Overflow,
    /// An initial merge uses a missing token.
    Dangling,
}

/// Learn merges by counting all pairs again after each merge.
pub fn learn(
    words: &HashMap<Vec<u8>, u64>,
    options: &MergeOptions,
) -> std::result::Result<Vec<Merge>, Refusal> {
    let weight: u128 = words.iter().map(|(word, &count)| u128::from(count) * word.len() as u128).sum();
    if weight >= 1 << 63 {
        return Err(Refusal::Overflow);
    }
    let dangling = |(made, &(left, right)): (Symbol, &(Symbol, Symbol))| left >= made || right >= made;
    if (256..).zip(&options.initial).any(dangling) {
        return Err(Refusal::Dangling);
    }
    let mut pairs = options.initial.clone();
    let mut words: Vec<_> = words.iter().map(|(word, &count)| (merge_word(&pairs, word), count)).collect();
    let mut learnt = Vec::new();
    while learnt.len() < options.num_merges {
        let mut counts: HashMap<(Symbol, Symbol), u64> = HashMap::new();
        for (symbols, count) in &words {
            for pair in symbols.windows(2) {
                *counts.entry((pair[0], pair[1])).or_default() += count;
            }
        }
        let best = counts
            .into_iter()
            .filter(|&(_, count)| count >= options.min_count.max(1))
            .max_by_key(|&((left, right), count)| (count, bytes(&pairs, left), bytes(&pairs, right)));
        let Some(((left, right), count)) = best else { break };
        let made = 256 + pairs.len() as Symbol;
        pairs.push((left, right));
        learnt.push(Merge { left, right, count });
        words.iter_mut().for_each(|(symbols, _)| join(symbols, (left, right), made));
    }
    Ok(learnt)
}

/// The bytes of a symbol.
pub fn bytes(merges: &[(Symbol, Symbol)], symbol: Symbol) -> Vec<u8> {
    match u8::try_from(symbol) {
        Ok(byte) => vec![byte],
        Err(_) => {
            let (left, right) = merges[symbol as usize - 256];
            [bytes(merges, left), bytes(merges, right)].concat()
        }
    }
}
