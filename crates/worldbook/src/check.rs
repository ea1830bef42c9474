//! The checks of a program, which make every document writable: `grammar.py` has the same checks.

use crate::program::{Part, Program, nests};
use crate::{Error, Result};

/// Rules may call each other this deeply over all levels, which bounds the stack; the package's grammar needs 28.
const MAX_CALLS: usize = 200;

impl Program {
    /// Check that indices are in their tables, choices have weights, calls end, and things are in play.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_tables()?;
        self.check_weights()?;
        if !self.parts().all(|(_, part)| self.is_valid(part)) {
            return Err(Error::Program("a part refers to nothing"));
        }
        self.check_variables()?;
        self.check_calls()?;
        self.check_things()
    }

    fn check_tables(&self) -> Result<()> {
        let is_rule = |rule: usize| rule < self.rules.len();
        if self.genres.is_empty() || !self.genres.iter().all(|&(rule, weight)| is_rule(rule) && weight > 0) {
            return Err(Error::Program("a genre has no rule or no weight"));
        }
        if !self.turns.iter().all(|&(rule, weight)| is_rule(rule) && weight > 0) {
            return Err(Error::Program("a turn has no rule or no weight"));
        }
        let (things, names) = self.things_and_names;
        let num_words = |number: usize| self.lexicons.get(number).map_or(0, |lexicon| lexicon.weights.len());
        if num_words(names) < 2
            || num_words(things) <= self.limits.max_things
            || self.recency.len() < self.limits.max_things
        {
            return Err(Error::Program("too few things or names"));
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
        Ok(())
    }

    fn check_weights(&self) -> Result<()> {
        let limits = self.limits;
        if limits.max_things == 0 || limits.stop_weight == 0 || self.recency.contains(&0) {
            return Err(Error::Program("a limit or a weight is 0"));
        }
        let genres: u128 = self.genres.iter().map(|&(_, weight)| u128::from(weight)).sum();
        let urn = genres + u128::from(limits.max_sections) * u128::from(limits.urn_gain);
        if u64::try_from(urn).is_err() || limits.stop_weight.checked_add(limits.max_sections).is_none() {
            return Err(Error::Program("weights overflow"));
        }
        if self.rules.iter().flatten().any(|alternative| alternative.weight == 0) {
            return Err(Error::Program("an alternative has no weight"));
        }
        if !self.rules.iter().all(|rule| rule.iter().any(|each| !nests(each))) {
            return Err(Error::Program("a rule has no alternative at the deepest level"));
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
            Part::Repeat(variable, lexicon, form) => is_variable(Some(variable)) && is_word(lexicon, form),
            Part::Fact(fact, form) => fact < self.facts.len() && form < 3,
            Part::Pronoun(woman, man) => woman < self.texts.len() && man < self.texts.len(),
            Part::Number(_, low, high) => 0 <= low && low <= high && high < 1 << 20,
            Part::NewThing(form) | Part::OldThing(form) | Part::SameThing(form) => form < 3,
            _ => true,
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
                if *lexicons[variable].get_or_insert(lexicon) != lexicon {
                    return Err(Error::Program("a variable has words of two lexicons"));
                }
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
        if ends.contains(&false) || depth > MAX_CALLS {
            return Err(Error::Program("rules call each other without end or too deeply"));
        }
        Ok(())
    }

    /// Check that a thing is in play where a part mentions it, and that an introduction draws a new one.
    fn check_things(&self) -> Result<()> {
        let [introduce, move_, ask] = self.turns.map(|(rule, _)| rule);
        let outside = self.rules_below(self.genres.iter().map(|&(rule, _)| rule))?;
        let introductions = self.rules_below([introduce].into_iter())?;
        let others = self.rules_below([move_, ask].into_iter())?;
        for (rule, part) in self.parts() {
            let is_misplaced = match part {
                Part::Turn => introductions[rule] || others[rule],
                Part::NewThing(_) | Part::FirstHolder => outside[rule] || others[rule],
                Part::OldThing(_) | Part::SameThing(_) | Part::NextHolder | Part::PresentHolder => {
                    outside[rule] || introductions[rule]
                }
                _ => false,
            };
            if is_misplaced {
                return Err(Error::Program("a turn, a thing or a holder is in the wrong rule"));
            }
        }
        if !self.always_has(introduce, |part| matches!(part, Part::NewThing(_)))
            || !self.always_has(introduce, |part| matches!(part, Part::FirstHolder))
        {
            return Err(Error::Program("an introduction has no new thing or no first holder"));
        }
        Ok(())
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
