//! Safe cuts: positions where a text can be split so that its parts are processed like the whole text.
//!
//! With safe cuts, threads can share a file, and a stream can be encoded piece by piece. A cut is safe if the pattern
//! has a boundary there for any surrounding text, and no special token extends over it.

use crate::pattern::Pattern;
use crate::special::Specials;

/// The first safe cut at or after `from`, or the end of the text.
///
/// With a user-defined pattern, only special tokens are known to end pre-tokens; then `text` must begin at a safe
/// cut.
pub fn next_cut(pattern: &Pattern, specials: &Specials, text: &[u8], from: usize) -> usize {
    if from >= text.len() {
        return text.len();
    }
    if let Pattern::User(_) = pattern {
        return specials.next_end(text, from).unwrap_or(text.len());
    }
    (from..text.len()).find(|&position| is_safe(pattern, specials, text, position)).unwrap_or(text.len())
}

/// The last safe cut in `from..=to`, if there is one.
pub fn last_cut(
    pattern: &Pattern,
    specials: &Specials,
    text: &[u8],
    from: usize,
    to: usize,
) -> Option<usize> {
    (from.max(1)..=to.min(text.len())).rev().find(|&position| is_safe(pattern, specials, text, position))
}

#[inline]
fn is_safe(pattern: &Pattern, specials: &Specials, text: &[u8], position: usize) -> bool {
    // Long searches usually occur in a run of one character, in which no pattern has a boundary.
    text.get(position) != text.get(position.wrapping_sub(1))
        && pattern.is_boundary(text, position)
        && !specials.covers(text, position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    /// All safe cuts of a text, by both searches.
    fn cuts(pattern: &str, tokens: &[&str], text: &str) -> Result<Vec<usize>> {
        let pattern = Pattern::parse(pattern)?;
        let specials = Specials::new(tokens.iter().map(|&token| token.into()).collect())?;
        let text = text.as_bytes();
        let mut forwards = Vec::new();
        let mut from = 1;
        while from < text.len() {
            let cut = next_cut(&pattern, &specials, text, from);
            forwards.extend((cut < text.len()).then_some(cut));
            from = cut + 1;
        }
        let mut backwards = Vec::new();
        let mut to = text.len();
        while let Some(cut) = last_cut(&pattern, &specials, text, 0, to) {
            backwards.push(cut);
            to = cut - 1;
        }
        backwards.reverse();
        if !matches!(pattern, Pattern::User(_)) {
            assert_eq!(forwards, backwards);
        }
        Ok(forwards)
    }

    #[test]
    fn a_text_is_cut_only_between_words_that_cannot_join() -> Result<()> {
        assert_eq!(cuts("gpt2", &[], "one two!")?, [3, 7]);
        assert_eq!(cuts("gpt2", &[], "a  b")?, [1]);
        assert_eq!(cuts("gpt2", &[], "a\u{a0} b")?, [1]);
        assert_eq!(cuts("gpt2", &[], "it's")?, [2]);
        assert_eq!(cuts("gpt4", &[], "one two!\n x")?, [3]);
        Ok(())
    }

    #[test]
    fn a_special_token_is_not_cut_for_any_start_of_the_search() -> Result<()> {
        assert_eq!(cuts("gpt2", &["two three"], "one two three four")?, [3, 13]);
        assert_eq!(cuts("gpt2", &["a b", "b a"], "x a b a x")?, [1, 7]);
        assert_eq!(cuts(r"\S+", &["<e>"], "one two<e>three <e><e>four")?, [10, 19, 22]);
        Ok(())
    }

    #[test]
    fn after_the_end_the_cut_is_the_end() -> Result<()> {
        let specials = Specials::new(Vec::new())?;
        for from in [0, 3, 4, usize::MAX] {
            assert_eq!(next_cut(&Pattern::Gpt2, &specials, b"abc", from), 3);
        }
        assert_eq!(last_cut(&Pattern::Gpt2, &specials, b"a b", 0, usize::MAX), Some(1));
        assert_eq!(last_cut(&Pattern::Gpt2, &specials, b"a b", 2, 1), None);
        assert_eq!(last_cut(&Pattern::Gpt2, &specials, b"", 0, 0), None);
        Ok(())
    }
}
