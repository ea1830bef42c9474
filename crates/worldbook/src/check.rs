//! Check a program once, so that writing its documents ends, cannot fail, and uses only things in play.
//!
//! `grammar.py` checks the same properties and reports them by the names and lines of the grammar. Indices and overflow
//! are only checked here. What makes texts unambiguous is only checked there: the beginnings of alternatives, the words
//! of a lexicon, the text after a drawn word and before a nested rule. The same holds for equal weights of things and
//! names, and for the order of variables: before its first word, a variable has word 0 here.

use crate::program::{Operation, Part, Program, nests};
use crate::{Error, Result};

/// Rules may call each other this deeply over all levels, which bounds the stack.
const MAX_CALLS: usize = 200;
/// Numbers are smaller than this.
const MAX_NUMBER: i64 = 1 << 20;
/// The forms of a word.
const NUM_FORMS: usize = 3;

/// Return an error if a condition does not hold.
fn ensure(holds: bool, problem: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Program(problem)) }
}

impl Program {
    /// Check tables, weights, parts, variables, calls, results and things; later checks assume that earlier ones passed.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_tables()?;
        self.check_weights()?;
        self.parts().try_for_each(|(_, part)| self.check_part(part))?;
        self.check_variables()?;
        self.check_calls()?;
        (0..self.rules.len()).try_for_each(|rule| self.largest_result(rule, 0).map(|_| ()))?;
        self.check_things()
    }

    fn check_tables(&self) -> Result<()> {
        let is_rule = |rule: usize| rule < self.rules.len();
        ensure(!self.genres.is_empty(), "there is no genre")?;
        ensure(self.genres.iter().all(|&(rule, _)| is_rule(rule)), "a genre has no rule")?;
        ensure(self.turns.iter().all(|&(rule, _)| is_rule(rule)), "a turn has no rule")?;
        ensure(self.facts.iter().all(|&fact| fact < self.lexicons.len()), "a fact has no lexicon")?;
        for lexicon in &self.lexicons {
            let size = lexicon.weights.len();
            ensure(size > 0, "a lexicon has no words")?;
            ensure(lexicon.forms.iter().all(|form| form.len() == size), "a word lacks a form or a weight")?;
        }
        let (things, names) = self.things_and_names;
        let num_words = |number: usize| self.lexicons.get(number).map_or(0, |lexicon| lexicon.weights.len());
        ensure(num_words(names) > 1, "fewer than two names: a thing needs a next holder")?;
        ensure(num_words(things) > self.limits.max_things, "there are at most max_things things")?;
        ensure(self.recency.len() >= self.limits.max_things, "fewer recency weights than max_things")
    }

    fn check_weights(&self) -> Result<()> {
        let limits = self.limits;
        ensure(limits.max_things > 0, "max_things is 0")?;
        ensure(limits.stop_weight > 0, "stop_weight is 0")?;
        ensure(!self.recency.contains(&0), "a recency weight is 0")?;
        ensure(self.genres.iter().all(|&(_, weight)| weight > 0), "a genre has the weight 0")?;
        ensure(self.turns.iter().all(|&(_, weight)| weight > 0), "a turn has the weight 0")?;
        ensure(!self.lexicons.iter().any(|lexicon| lexicon.weights.contains(&0)), "a word has the weight 0")?;
        let genres: u128 = self.genres.iter().map(|&(_, weight)| u128::from(weight)).sum();
        let urn = genres + u128::from(limits.max_sections) * u128::from(limits.urn_gain);
        ensure(u64::try_from(urn).is_ok(), "the weights of the genres overflow")?;
        let stop = limits.stop_weight.checked_add(limits.max_sections);
        ensure(stop.is_some(), "stop_weight + max_sections overflows")?;
        ensure(
            self.rules.iter().flatten().all(|alternative| alternative.weight > 0),
            "an alternative has the weight 0",
        )?;
        ensure(
            self.rules.iter().all(|rule| rule.iter().any(|each| !nests(each))),
            "a rule has no alternative at the deepest level",
        )
    }

    /// Check the indices and the numbers of a part.
    fn check_part(&self, part: Part) -> Result<()> {
        let is_text = |text: usize| ensure(text < self.texts.len(), "a part has an unknown text");
        let is_rule = |rule: usize| ensure(rule < self.rules.len(), "a part calls an unknown rule");
        let is_form = |form: usize| ensure(form < NUM_FORMS, "a part has an unknown form");
        let is_lexicon =
            |lexicon: usize| ensure(lexicon < self.lexicons.len(), "a part has an unknown lexicon");
        let is_variable =
            |variable: usize| ensure(variable < self.num_variables, "a part has an unknown variable");
        match part {
            Part::Text(text) => is_text(text),
            Part::Call(rule) | Part::Nest(rule) => is_rule(rule),
            Part::Pick(lexicon, form, variable, other) => {
                is_lexicon(lexicon)?;
                is_form(form)?;
                variable.into_iter().chain(other).try_for_each(is_variable)?;
                let can_differ = other.is_none() || self.lexicons[lexicon].weights.len() > 1;
                ensure(can_differ, "a word must differ from another one, but its lexicon has only one")
            }
            Part::Repeat(variable, lexicon, form) => {
                is_variable(variable)?;
                is_lexicon(lexicon)?;
                is_form(form)
            }
            Part::Fact(fact, form) => {
                ensure(fact < self.facts.len(), "a part has an unknown fact")?;
                is_form(form)
            }
            Part::Pronoun(woman, man) => {
                is_text(woman)?;
                is_text(man)
            }
            Part::Number(_, low, high) => {
                ensure(low <= high, "a range of numbers is empty")?;
                ensure(0 <= low && high < MAX_NUMBER, "a range of numbers is not within 0 to 2^20 - 1")
            }
            Part::NewThing(form) | Part::OldThing(form) | Part::SameThing(form) => is_form(form),
            Part::NewPerson
            | Part::OtherPerson
            | Part::SamePerson
            | Part::Result
            | Part::Turn
            | Part::FirstHolder
            | Part::NextHolder
            | Part::PresentHolder => Ok(()),
        }
    }

    /// Check that a variable has words of one lexicon only: words are numbers.
    fn check_variables(&self) -> Result<()> {
        let mut lexicons: Vec<Option<usize>> = filled(self.num_variables, None)?;
        for (_, part) in self.parts() {
            let (variables, lexicon) = match part {
                Part::Pick(lexicon, _, variable, other) => ([variable, other], lexicon),
                Part::Repeat(variable, lexicon, _) => ([Some(variable), None], lexicon),
                _ => continue,
            };
            for variable in variables.into_iter().flatten() {
                let first = *lexicons[variable].get_or_insert(lexicon);
                ensure(first == lexicon, "a variable has words of two lexicons")?;
            }
        }
        Ok(())
    }

    /// Check that calls end: a rule reaches itself through `Nest` only, and the depth is limited.
    fn check_calls(&self) -> Result<()> {
        let mut ends = filled(self.rules.len(), false)?;
        let mut num_calls = 0; // the longest chain of calls inside a level
        loop {
            let mut ends_now = filled(self.rules.len(), true)?;
            for (rule, part) in self.parts() {
                ends_now[rule] &= match part {
                    Part::Call(called) => ends[called],
                    Part::Turn => self.turns.iter().all(|&(called, _)| ends[called]),
                    _ => true,
                };
            }
            if ends_now == ends {
                break;
            }
            (ends, num_calls) = (ends_now, num_calls + 1);
        }
        let depth = self.limits.max_depth.saturating_add(1).saturating_mul(num_calls);
        ensure(!ends.contains(&false), "rules call each other without end")?;
        ensure(depth <= MAX_CALLS, "rules call each other too deeply")
    }

    /// The largest absolute result of a calculation after a rule, given the one before it; the rule must end.
    fn largest_result(&self, rule: usize, before: i64) -> Result<i64> {
        let mut largest = 0;
        for alternative in &self.rules[rule] {
            let mut result = before;
            for &part in &alternative.parts {
                let next = match part {
                    Part::Number(Operation::Replace, _, high) => Some(high),
                    Part::Number(Operation::Multiply, _, high) => result.checked_mul(high),
                    Part::Number(Operation::Add | Operation::Subtract, _, high) => result.checked_add(high),
                    Part::Call(called) => Some(self.largest_result(called, result)?),
                    Part::Turn => {
                        let [introduce, move_, ask] =
                            self.turns.map(|(called, _)| self.largest_result(called, result));
                        Some(introduce?.max(move_?).max(ask?))
                    }
                    _ => Some(result),
                };
                result = next.ok_or(Error::Program("the result of a calculation exceeds 64 bits"))?;
            }
            largest = largest.max(result);
        }
        Ok(largest)
    }

    /// Check that a thing is in play where a part mentions it, and that an introduction draws a new one.
    fn check_things(&self) -> Result<()> {
        let [introduce, move_, ask] = self.turns.map(|(rule, _)| rule);
        let outside = self.rules_below(self.genres.iter().map(|&(rule, _)| rule))?;
        let introductions = self.rules_below([introduce].into_iter())?;
        let others = self.rules_below([move_, ask].into_iter())?;
        for (rule, part) in self.parts() {
            let (is_misplaced, problem) = match part {
                Part::Turn => (introductions[rule] || others[rule], "a turn contains another turn"),
                Part::NewThing(_) | Part::FirstHolder => (
                    outside[rule] || others[rule],
                    "a new thing or a first holder is outside an introduction",
                ),
                Part::OldThing(_) | Part::SameThing(_) | Part::NextHolder | Part::PresentHolder => (
                    outside[rule] || introductions[rule],
                    "a thing in play or its holder is outside the turns move and ask",
                ),
                _ => continue,
            };
            ensure(!is_misplaced, problem)?;
        }
        let has_thing = self.always_has(introduce, |part| matches!(part, Part::NewThing(_)));
        ensure(has_thing, "an introduction has no new thing")?;
        let has_holder = self.always_has(introduce, |part| matches!(part, Part::FirstHolder));
        ensure(has_holder, "an introduction has no first holder")
    }

    /// Mark some rules and all that they call, without those that are called by a turn alone.
    fn rules_below(&self, first: impl Iterator<Item = usize>) -> Result<Vec<bool>> {
        let mut found = filled(self.rules.len(), false)?;
        first.for_each(|rule| found[rule] = true);
        let mut is_growing = true;
        while is_growing {
            is_growing = false;
            for (rule, part) in self.parts() {
                if let Part::Call(called) | Part::Nest(called) = part
                    && found[rule]
                    && !found[called]
                {
                    found[called] = true;
                    is_growing = true;
                }
            }
        }
        Ok(found)
    }

    /// Whether every text of a rule has a part; the rule must end.
    fn always_has(&self, rule: usize, is_wanted: fn(Part) -> bool) -> bool {
        self.rules[rule].iter().all(|alternative| {
            alternative.parts.iter().any(|&part| match part {
                Part::Call(called) => self.always_has(called, is_wanted),
                _ => is_wanted(part),
            })
        })
    }

    /// All parts of all templates, each with its rule.
    fn parts(&self) -> impl Iterator<Item = (usize, Part)> + '_ {
        self.rules.iter().enumerate().flat_map(|(number, rule)| {
            rule.iter().flat_map(move |alternative| alternative.parts.iter().map(move |&part| (number, part)))
        })
    }
}

fn filled<T: Clone>(size: usize, value: T) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(size)?;
    values.resize(size, value);
    Ok(values)
}
