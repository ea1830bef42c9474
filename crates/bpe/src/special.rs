//! Special tokens, which are separated from the text first: the leftmost match, and of several the longest.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::error::{Error, Result};

/// The largest total size in bytes of special tokens for which the fastest automaton is built.
const LONG: usize = 1 << 10;

/// A set of special tokens to search for.
#[derive(Clone, Debug)]
pub struct Specials {
    tokens: Vec<String>,
    finder: Option<AhoCorasick>,
    longest: usize,
    /// Whether some token begins with this byte.
    is_first: [bool; 256],
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'t> {
    /// Text between special tokens; never empty.
    Text(&'t [u8]),
    /// The special token with this index, at this byte of the text.
    Special {
        /// Its index in the given order.
        index: usize,
        /// Its position.
        position: usize,
    },
}

impl Specials {
    /// Search for these tokens. None of them may be empty.
    pub fn new(tokens: Vec<String>) -> Result<Specials> {
        if tokens.iter().any(String::is_empty) {
            return Err(Error::Vocabulary(
                "a special token is empty; it must be at least one character".into(),
            ));
        }
        let finder = if tokens.is_empty() {
            None
        } else {
            // Building the fastest automaton can take time quadratic in their length.
            let is_long = tokens.iter().map(String::len).sum::<usize>() > LONG;
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .kind(is_long.then_some(AhoCorasickKind::ContiguousNFA))
                .build(&tokens);
            Some(built.map_err(|error| {
                Error::Vocabulary(format!("the special tokens cannot be searched for: {error}"))
            })?)
        };
        let longest = tokens.iter().map(String::len).max().unwrap_or(0);
        let mut is_first = [false; 256];
        for first in tokens.iter().filter_map(|token| token.bytes().next()) {
            is_first[usize::from(first)] = true;
        }
        Ok(Specials { tokens, finder, longest, is_first })
    }

    /// The token with this index.
    pub fn token(&self, index: usize) -> Option<&str> {
        self.tokens.get(index).map(String::as_str)
    }

    /// The length of the longest token in bytes; 0 if there are none.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Call `visit` for each part of `text` in order until it fails.
    #[inline]
    pub fn split<'t, E>(
        &self,
        text: &'t [u8],
        mut visit: impl FnMut(Piece<'t>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut done = 0;
        if let Some(finder) = &self.finder {
            for found in finder.find_iter(text) {
                if found.start() > done {
                    visit(Piece::Text(&text[done..found.start()]))?;
                }
                visit(Piece::Special { index: found.pattern().as_usize(), position: found.start() })?;
                done = found.end();
            }
        }
        if done < text.len() {
            visit(Piece::Text(&text[done..]))?;
        }
        Ok(())
    }

    /// The end of the last special token that ends at or before `limit`.
    pub fn last_end(&self, text: &[u8], limit: usize) -> Option<usize> {
        let finder = self.finder.as_ref()?;
        finder.find_iter(text).map(|found| found.end()).take_while(|&end| end <= limit).last()
    }

    /// The first position at or after `from` where a special token ends.
    pub fn next_end(&self, text: &[u8], from: usize) -> Option<usize> {
        let finder = self.finder.as_ref()?;
        finder.find_iter(text).map(|found| found.end()).find(|&end| end >= from)
    }

    /// Whether some special token, for any start of the search, covers both sides of `position`.
    pub fn covers(&self, text: &[u8], position: usize) -> bool {
        let begins_at = |start: usize, token: &String| {
            token.len() > position - start && text[start..].starts_with(token.as_bytes())
        };
        (position.saturating_sub(self.longest)..position.min(text.len()))
            .filter(|&start| self.is_first[usize::from(text[start])])
            .any(|start| self.tokens.iter().any(|token| begins_at(start, token)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(tokens: &[&str]) -> Result<Specials> {
        Specials::new(tokens.iter().map(|&token| token.into()).collect())
    }

    /// The parts of a text: special tokens by their index, and other text.
    fn pieces(specials: &Specials, text: &str) -> Vec<std::result::Result<usize, String>> {
        let mut found = Vec::new();
        let _ = specials.split(text.as_bytes(), |piece| {
            found.push(match piece {
                Piece::Special { index, .. } => Ok(index),
                Piece::Text(text) => Err(String::from_utf8_lossy(text).into_owned()),
            });
            Ok::<(), ()>(())
        });
        found
    }

    #[test]
    fn the_leftmost_and_then_the_longest_token_is_split_off() -> Result<()> {
        let ends = specials(&["<e>", "<e><e>"])?;
        assert_eq!(pieces(&ends, "<e><e><e>"), [Ok(1), Ok(0)]);
        assert_eq!(pieces(&ends, "a<e>b"), [Err("a".into()), Ok(0), Err("b".into())]);
        assert_eq!(pieces(&specials(&["ab", "bcd"])?, "abcd"), [Ok(0), Err("cd".into())]);
        assert_eq!(pieces(&specials(&[])?, "<e>"), [Err("<e>".into())]);
        assert_eq!(pieces(&ends, ""), []);
        Ok(())
    }

    #[test]
    fn a_failure_of_the_visitor_ends_the_search() -> Result<()> {
        let mut num_visits = 0;
        let outcome = specials(&["b"])?.split(b"abc", |_| {
            num_visits += 1;
            Err("enough")
        });
        assert_eq!((outcome, num_visits), (Err("enough"), 1));
        Ok(())
    }

    #[test]
    fn a_position_is_covered_strictly_inside_a_token_and_nowhere_else() -> Result<()> {
        let tokens = specials(&["a b", "b a"])?;
        let covered = |text: &[u8]| -> Vec<usize> {
            (0..=text.len()).filter(|&position| tokens.covers(text, position)).collect()
        };
        assert_eq!(covered(b"xa bx"), [2, 3]);
        // Searched from the left, "b a" is not found here; searched from its beginning, it would be.
        assert_eq!(covered(b"a b a"), [1, 2, 3, 4]);
        assert_eq!(covered(b"a  b"), []);
        assert_eq!(covered(b"xa "), []);
        assert_eq!(covered(b""), []);
        Ok(())
    }

    #[test]
    fn ends_are_those_of_the_tokens_that_are_split_off() -> Result<()> {
        let tokens = specials(&["<e>", "<e><e>"])?;
        let text = b"a<e><e>b<e>";
        assert_eq!((0..12).map(|from| tokens.next_end(text, from)).collect::<Vec<_>>(), {
            let mut ends = vec![Some(7); 8];
            ends.extend([Some(11); 4]);
            ends
        });
        assert_eq!(tokens.next_end(text, 12), None);
        assert_eq!(
            [6, 7, 10, 11].map(|limit| tokens.last_end(text, limit)),
            [None, Some(7), Some(7), Some(11)]
        );
        assert_eq!(specials(&[])?.next_end(text, 0), None);
        Ok(())
    }

    #[test]
    fn an_empty_token_is_rejected_and_many_long_ones_are_not() -> Result<()> {
        assert!(matches!(specials(&["a", ""]), Err(Error::Vocabulary(_))));
        let long = "x".repeat(100_000);
        assert_eq!(pieces(&specials(&["y", &long])?, &format!("y{long}x")), [Ok(0), Ok(1), Err("x".into())]);
        Ok(())
    }
}
