//! The scanners split text like their regular expressions, and every safe cut is safe.

mod texts;

use bpe::cut::{last_cut, next_cut};
use bpe::error::Result;
use bpe::pattern::Pattern;
use bpe::special::{Piece, Specials};
use texts::{Random, SPECIALS};

const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const GPT4: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);

/// Where the pre-tokens of `text` end.
fn ends(pattern: &Pattern, text: &[u8]) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    pattern.scan(text, |base, ends| {
        found.extend(ends.iter().map(|&end| base + end as usize));
        Ok(())
    })?;
    Ok(found)
}

/// The pre-tokens between special tokens, and the special tokens themselves.
fn words<'t>(pattern: &Pattern, specials: &Specials, text: &'t [u8]) -> Result<Vec<&'t [u8]>> {
    let mut found = Vec::new();
    specials.split(text, |piece| {
        match piece {
            Piece::Special { index, position } => {
                let len = specials.token(index).map_or(0, str::len);
                found.push(&text[position..position + len]);
            }
            Piece::Text(part) => {
                let mut start = 0;
                for end in ends(pattern, part)? {
                    found.push(&part[start..end]);
                    start = end;
                }
            }
        }
        Ok::<(), bpe::error::Error>(())
    })?;
    Ok(found)
}

#[test]
fn scanners_split_like_their_regular_expressions() -> Result<()> {
    for (scanner, expression) in [(Pattern::Gpt2, GPT2), (Pattern::Gpt4, GPT4)] {
        let engine = Pattern::parse(expression)?;
        let mut random = Random::new(1);
        for round in 0..3000 {
            let text = random.text(if round % 100 == 0 { 3000 } else { 60 });
            assert_eq!(ends(&scanner, &text)?, ends(&engine, &text)?, "{:?}", String::from_utf8_lossy(&text));
        }
    }
    Ok(())
}

/// The GPT-2 scanner uses windows of 4,096 bytes. Pre-tokens must not depend on the end of a window.
#[test]
fn scanners_split_invalid_text_like_their_regular_expressions() -> Result<()> {
    for (scanner, expression) in [(Pattern::Gpt2, GPT2), (Pattern::Gpt4, GPT4)] {
        let engine = Pattern::parse(expression)?;
        let mut random = Random::new(6);
        let mut texts: Vec<Vec<u8>> = (0..1000).map(|_| random.broken(60)).collect();
        texts.extend((0..10).map(|_| random.broken(20_000)));
        texts.push([&b"a1".repeat(2046)[..], b"\xc3\xa9\x82\xac\xa9"].concat());
        for text in texts {
            let start = text.len().saturating_sub(60);
            assert!(ends(&scanner, &text)? == ends(&engine, &text)?, "...{:02x?}", &text[start..]);
        }
    }
    Ok(())
}

#[test]
fn pretokens_are_never_empty_and_are_the_whole_text() -> Result<()> {
    let mut random = Random::new(2);
    for expression in ["gpt2", "gpt4", r"[a-z]+", "a*", "", r"(?<=a)b"] {
        let pattern = Pattern::parse(expression)?;
        for _ in 0..500 {
            let text = random.text(40);
            let found = ends(&pattern, &text)?;
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(found.last().copied().unwrap_or(0), text.len());
            assert!(found.first().is_none_or(|&first| first > 0));
        }
    }
    Ok(())
}

#[test]
fn every_boundary_is_a_safe_cut() -> Result<()> {
    let mut random = Random::new(3);
    for pattern in [Pattern::Gpt2, Pattern::Gpt4] {
        let mut num_cuts = 0;
        for round in 0..900 {
            let text = if round % 3 == 0 { random.broken(60) } else { random.text(25) };
            let whole = ends(&pattern, &text)?;
            for position in (1..text.len()).filter(|&position| pattern.is_boundary(&text, position)) {
                let mut halves = ends(&pattern, &text[..position])?;
                halves.extend(ends(&pattern, &text[position..])?.iter().map(|end| position + end));
                assert_eq!(halves, whole, "{:?} cut at {position}", String::from_utf8_lossy(&text));
                num_cuts += 1;
            }
        }
        assert!(num_cuts > 1000, "the test should find boundaries to try");
    }
    Ok(())
}

#[test]
fn cuts_split_neither_words_nor_special_tokens() -> Result<()> {
    let mut random = Random::new(4);
    let specials = Specials::new(SPECIALS.iter().map(|&token| token.into()).collect())?;
    for expression in ["gpt2", "gpt4", r"[^ ]+ [^ ]+|\s"] {
        let pattern = Pattern::parse(expression)?;
        for round in 0..600 {
            let text = if round % 3 == 0 { random.broken(60) } else { random.text(25) };
            let whole = words(&pattern, &specials, &text)?;
            let from = random.below(text.len() + 2);
            let cut = next_cut(&pattern, &specials, &text, from);
            assert!(cut >= from.min(text.len()) && cut <= text.len());
            let mut halves = words(&pattern, &specials, &text[..cut])?;
            halves.extend(words(&pattern, &specials, &text[cut..])?);
            assert_eq!(halves, whole, "{:?} cut at {cut}", String::from_utf8_lossy(&text));
            if let Some(cut) = last_cut(&pattern, &specials, &text, 0, from) {
                assert!(cut <= from);
                let mut halves = words(&pattern, &specials, &text[..cut])?;
                halves.extend(words(&pattern, &specials, &text[cut..])?);
                assert_eq!(halves, whole, "{:?} cut at {cut}", String::from_utf8_lossy(&text));
            }
        }
    }
    Ok(())
}

#[test]
fn a_text_can_be_processed_in_steps_of_any_size() -> Result<()> {
    let mut random = Random::new(5);
    let specials = Specials::new(SPECIALS.iter().map(|&token| token.into()).collect())?;
    for expression in ["gpt2", "gpt4", r"\S+"] {
        let pattern = Pattern::parse(expression)?;
        for round in 0..450 {
            let text = if round % 3 == 0 { random.broken(60) } else { random.text(40) };
            let step = random.below(12);
            let mut found = Vec::new();
            let mut start = 0;
            while start < text.len() {
                let end = start + next_cut(&pattern, &specials, &text[start..], step);
                assert!(end > start, "every cut must advance");
                found.extend(words(&pattern, &specials, &text[start..end])?);
                start = end;
            }
            assert_eq!(found, words(&pattern, &specials, &text)?);
        }
    }
    Ok(())
}
