//! The compiled grammar; `template_parts.py` explains its parts. Names are indices into the tables of the program.

/// How a number changes the result of a calculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The number replaces the result.
    Replace,
    /// The number is added to the result.
    Add,
    /// The number is subtracted from the result.
    Subtract,
    /// The result is multiplied by the number.
    Multiply,
}

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
    Repeat(usize, usize, usize),
    /// A new person.
    NewPerson,
    /// A person other than the last new one.
    OtherPerson,
    /// The name of the last person.
    SamePerson,
    /// A fact about the last person, in a form.
    Fact(usize, usize),
    /// One of two texts, for a woman and a man.
    Pronoun(usize, usize),
    /// A number from a lowest to a highest one, which changes the result.
    Number(Operation, i64, i64),
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
    PresentHolder,
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

/// Whether a template begins another level.
pub(crate) fn nests(alternative: &Alternative) -> bool {
    alternative.parts.iter().any(|part| matches!(part, Part::Nest(_)))
}
