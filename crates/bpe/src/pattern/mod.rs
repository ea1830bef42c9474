//! Pre-tokenisation: splitting text into words, whose boundaries merges never cross.

mod gpt2;
mod gpt4;
mod user;

use crate::error::Result;

/// The rule that splits text into pre-tokens.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// The pattern of GPT-2, with its own scanner.
    Gpt2,
    /// The pattern of GPT-4 (cl100k), with its own scanner.
    Gpt4,
    /// A user-defined regular expression.
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

    /// Call `emit(base, ends)` for groups of pre-tokens until it fails. A pre-token ends at `base + end` and begins at the
    /// end of the previous one, so together they are the whole text.
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

    /// Whether splitting the text at `position` and scanning both parts yields the pre-tokens of the whole text.
    ///
    /// Only the two characters around `position` are used, so the result may be false for a safe cut. It is always
    /// false for user-defined expressions.
    #[inline]
    pub fn is_boundary(&self, text: &[u8], position: usize) -> bool {
        match self {
            Pattern::Gpt2 => gpt2::is_boundary(text, position),
            Pattern::Gpt4 => gpt4::is_boundary(text, position),
            Pattern::User(_) => false,
        }
    }
}

/// Group the ends that `scan` finds one by one. `emit` is not called again after it has failed.
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
