//! The compiled grammar; `grammar.py` explains its parts. Names are indices into the tables of the program.

use crate::{Error, Result};

/// Rules may call each other this deeply; the grammar of the package needs about ten levels.
pub(crate) const MAX_CALLS: usize = 200;

/// A part of a template.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Literal text.
    Text(usize),
    /// The text of a rule.
    Call(usize),
    /// The text of a rule, one level deeper and with variables of its own.
    Nest(usize),
    /// A word of a lexicon in a form. It is stored in a variable, and differs from the word of another one.
    Pick(usize, usize, Option<usize>, Option<usize>),
    /// The word of a variable of a lexicon, in a form.
    Mention(usize, usize, usize),
    /// A new person.
    NewPerson,
    /// A person other than the last new one.
    OtherPerson,
    /// The name of the last person.
    PersonName,
    /// A fact about the last person, in a form.
    Fact(usize, usize),
    /// One of two texts, for a woman and a man.
    Pronoun(usize, usize),
    /// A number between two bounds. It replaces the result (0), or is added (1), subtracted (2) or multiplied (3).
    Number(usize, i64, i64),
    /// The result of the calculation.
    Result,
    /// A turn of the things.
    Turn,
    /// A new thing, in a form.
    NewThing(usize),
    /// A thing in play, in a form.
    OldThing(usize),
    /// The last thing, in a form.
    SameThing(usize),
    /// The first holder of a new thing.
    FirstHolder,
    /// The next holder of the last thing.
    NextHolder,
    /// The present holder of the last thing.
    Holder,
}

/// Words in three forms (plain, with article, with capital), and their weights.
#[derive(Debug)]
pub struct Lexicon {
    /// The texts of the words in each form.
    pub forms: [Vec<String>; 3],
    /// The weights of the words.
    pub weights: Vec<u64>,
}

/// A template with its weight.
#[derive(Debug)]
pub struct Alternative {
    /// The weight.
    pub weight: u64,
    /// The parts.
    pub parts: Vec<Part>,
}

/// The alternatives of a rule.
pub type Rule = Vec<Alternative>;

/// The numbers of a grammar.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest number of sections of a document.
    pub max_sections: u64,
    /// The deepest level of nesting.
    pub max_depth: usize,
    /// The largest number of things in play.
    pub max_things: usize,
    /// The weight that a section adds to its genre.
    pub urn_gain: u64,
    /// The weight of the end of a document, against n + 1 after n sections.
    pub stop_weight: u64,
}

/// A compiled grammar.
#[derive(Debug)]
pub struct Program {
    /// Literal texts.
    pub texts: Vec<String>,
    /// Lexicons.
    pub lexicons: Vec<Lexicon>,
    /// Rules.
    pub rules: Vec<Rule>,
    /// The rule and the weight of each genre.
    pub genres: Vec<(usize, u64)>,
    /// The lexicon of each fact.
    pub facts: Vec<usize>,
    /// The rules and weights of the turns: introduce, move, ask.
    pub turns: [(usize, u64); 3],
    /// The lexicons of things and of the names of their holders.
    pub things_and_names: (usize, usize),
    /// The number of variables.
    pub num_variables: usize,
    /// The weight of each position in the order of last mention.
    pub recency: Vec<u64>,
    /// The numbers of the grammar.
    pub limits: Limits,
}

impl Program {
    /// Check that every index is in its table and that every choice has a weight.
    pub(crate) fn check(&self) -> Result<()> {
        let is_rule = |rule: usize| rule < self.rules.len();
        if self.genres.is_empty() || !self.genres.iter().all(|&(rule, weight)| is_rule(rule) && weight > 0) {
            return Err(Error::Program("a genre has no rule or no weight"));
        }
        let (things, names) = self.things_and_names;
        let num_names = self.lexicons.get(names).map_or(0, |lexicon| lexicon.weights.len());
        let num_things = self.lexicons.get(things).map_or(0, |lexicon| lexicon.weights.len());
        if !self.turns.iter().all(|&(rule, weight)| is_rule(rule) && weight > 0) {
            return Err(Error::Program("a turn has no rule or no weight"));
        }
        if num_names < 2
            || num_things <= self.limits.max_things
            || self.recency.len() < self.limits.max_things
        {
            return Err(Error::Program("too few things or names"));
        }
        if self.limits.max_things == 0 || self.limits.stop_weight == 0 || self.recency.contains(&0) {
            return Err(Error::Program("a limit or a weight is 0"));
        }
        for lexicon in &self.lexicons {
            let size = lexicon.weights.len();
            if size == 0
                || lexicon.weights.contains(&0)
                || lexicon.forms.iter().any(|form| form.len() != size)
            {
                return Err(Error::Program("a lexicon is empty or its forms differ in length"));
            }
        }
        if !self.facts.iter().all(|&fact| fact < self.lexicons.len()) {
            return Err(Error::Program("a fact has no lexicon"));
        }
        for alternative in self.rules.iter().flatten() {
            if alternative.weight == 0 || !alternative.parts.iter().all(|&part| self.is_valid(part)) {
                return Err(Error::Program("an alternative has no weight or refers to nothing"));
            }
        }
        if !self.rules.iter().all(|rule| rule.iter().any(|each| !nests(each))) {
            return Err(Error::Program("a rule has no alternative at the deepest level"));
        }
        for &(genre, _) in &self.genres {
            self.check_calls(genre, 0, MAX_CALLS)?;
        }
        Ok(())
    }

    fn is_valid(&self, part: Part) -> bool {
        let is_word = |lexicon: usize, form: usize| lexicon < self.lexicons.len() && form < 3;
        let is_variable = |variable: Option<usize>| variable.is_none_or(|each| each < self.num_variables);
        match part {
            Part::Text(text) => text < self.texts.len(),
            Part::Call(rule) | Part::Nest(rule) => rule < self.rules.len(),
            Part::Pick(lexicon, form, variable, other) => {
                let size = self.lexicons.get(lexicon).map_or(0, |each| each.weights.len());
                is_word(lexicon, form)
                    && is_variable(variable)
                    && is_variable(other)
                    && (other.is_none() || size > 1)
            }
            Part::Mention(variable, lexicon, form) => is_variable(Some(variable)) && is_word(lexicon, form),
            Part::Fact(fact, form) => fact < self.facts.len() && form < 3,
            Part::Pronoun(woman, man) => woman < self.texts.len() && man < self.texts.len(),
            Part::Number(_, low, high) => 0 <= low && low <= high && high < 1 << 20,
            Part::NewThing(form) | Part::OldThing(form) | Part::SameThing(form) => form < 3,
            _ => true,
        }
    }

    /// Check that calls end: a rule reaches itself through `Nest` only, and the depth is limited.
    fn check_calls(&self, rule: usize, depth: usize, calls_left: usize) -> Result<()> {
        if calls_left == 0 {
            return Err(Error::Program("rules call each other too deeply"));
        }
        if depth > self.limits.max_depth.min(1) {
            return Ok(()); // each level calls the same rules
        }
        for part in self.rules[rule].iter().flat_map(|alternative| &alternative.parts) {
            match *part {
                Part::Call(called) => self.check_calls(called, depth, calls_left - 1)?,
                Part::Nest(called) => self.check_calls(called, depth + 1, calls_left - 1)?,
                Part::Turn => {
                    for (called, _) in self.turns {
                        self.check_calls(called, depth, calls_left - 1)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a template begins another level.
pub(crate) fn nests(alternative: &Alternative) -> bool {
    alternative.parts.iter().any(|part| matches!(part, Part::Nest(_)))
}
