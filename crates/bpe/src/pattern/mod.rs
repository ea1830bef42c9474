//! Pre-tokenisation: cutting text into the pieces that merges never cross.

mod gpt2;
mod gpt4;
mod user;

use crate::error::Result;

/// How text is cut into pre-tokens.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// The pattern of GPT-2, by a scanner of our own.
    Gpt2,
    /// The pattern of GPT-4 (cl100k), by a scanner of our own.
    Gpt4,
    /// A regular expression of the user's.
    User(Box<fancy_regex::Regex>),
}

impl Pattern {
    /// `"gpt2"`, `"gpt4"`, or a regular expression.
    pub fn parse(name: &str) -> Result<Pattern> {
        match name {
            "gpt2" => Ok(Pattern::Gpt2),
            "gpt4" => Ok(Pattern::Gpt4),
            expression => Ok(Pattern::User(Box::new(user::compile(expression)?))),
        }
    }

    /// Call `emit(base, ends)` for group after group of pre-tokens, until it fails: they end at `base + end`, and each
    /// begins where the one before it ends, so that together they are the whole text.
    #[inline(always)]
    pub fn scan(&self, text: &[u8], emit: impl FnMut(usize, &[u32]) -> Result<()>) -> Result<()> {
        match self {
            Pattern::Gpt2 => gpt2::scan(text, emit),
            Pattern::Gpt4 => in_groups(emit, |end_at| {
                gpt4::scan(text, end_at);
                Ok(())
            }),
            Pattern::User(regex) => in_groups(emit, |end_at| user::scan(regex, text, end_at)),
        }
    }

    /// Whether cutting the text at `position` and scanning both halves gives the pre-tokens of the whole.
    ///
    /// It looks only at the two characters around `position`, and may say no where yes were true too. Of a
    /// user's expression nothing is known, so there the answer is always no.
    #[inline]
    pub fn is_boundary(&self, text: &[u8], position: usize) -> bool {
        match self {
            Pattern::Gpt2 => gpt2::is_boundary(text, position),
            Pattern::Gpt4 => gpt4::is_boundary(text, position),
            Pattern::User(_) => false,
        }
    }
}

/// Gather the ends that `scan` finds one by one into groups. After `emit` has failed, it is not called any more.
fn in_groups(
    mut emit: impl FnMut(usize, &[u32]) -> Result<()>,
    scan: impl FnOnce(&mut dyn FnMut(usize)) -> Result<()>,
) -> Result<()> {
    let mut base = 0;
    let mut ends = [0; 256];
    let mut num_ends = 0;
    let mut outcome = Ok(());
    scan(&mut |end| {
        if num_ends == ends.len() || u32::try_from(end - base).is_err() {
            if outcome.is_ok() {
                outcome = emit(base, &ends[..num_ends]);
            }
            base = end;
            num_ends = 0;
        }
        ends[num_ends] = (end - base) as u32;
        num_ends += 1;
    })?;
    outcome?;
    emit(base, &ends[..num_ends])
}
