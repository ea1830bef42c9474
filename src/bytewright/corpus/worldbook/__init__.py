"""The world book: documents about one world, whose entropy and scaling curves are known exactly.

**Documents.** A document has 1 to 256 sections, separated by blank lines. After n sections it ends with
probability 1 / (n + 2), so lengths follow a power law. The genre of each section is drawn from a Pólya urn
that is new for each document: a section adds weight to its genre. The genres are *people* (facts about
persons of the world), *tale* (fables with fables inside), and *things* (objects change hands, and somebody
asks who has them). Two others are *sums* (arithmetic) and *walk* (prose with a Zipfian vocabulary).

**Choices.** `worldbook.grammar` has the templates. Each choice has integer weights, so its probability is a
ratio of integers. The probability of a document is the product of these ratios along its derivation. Some
texts follow from earlier choices and have 0 bits. Examples are a fact about a named person, the holder of a
thing, and a sum.

**What is hashed.** Persons are drawn with p_i ∝ i^-s. A keyed bijection maps rank i to a number, the number
spells the name, and a hash of (world seed, number) yields each fact. Nothing is stored (`world`). Documents
are functions of (world, split, seed, index), so each can be generated without those before it.

**One derivation.** One machine (`machine`) generates and parses. It calls a builder, which draws the choices
or recognises them in a text. The text shows each outcome where it is drawn. The alternatives of a rule have
beginnings that exclude each other, and words end at boundaries. So the text determines each choice from left
to right. `grammar` checks these conditions.

**Entropy.** The entropy of a document is a sum over all choices: the entropy of the choice times the expected
number of its occurrences (`entropy`). It is computed by substitution over rules and depths, over the number
of things in play, and over the counts of the urn.

**Curves.** `curves` computes which facts no model can have learned after n mentions, and which do not fit
into N parameters.

Start with `book`. `template_parts` and `grammar` define the templates, and `notation` reads them. `choices`
has the distributions, `derivation` and `machine` generate and parse, and `fused` compiles a grammar for the
generator in Rust. `files` writes text files with manifests, and `check` examines what a model has written.
"""

from bytewright.corpus.worldbook.book import Document, Split, Worldbook
from bytewright.corpus.worldbook.derivation import Derivation, DerivedChoice, LanguageError
from bytewright.corpus.worldbook.entropy import DocumentEntropy
from bytewright.corpus.worldbook.world import World

__all__ = [
    "Derivation",
    "DerivedChoice",
    "Document",
    "DocumentEntropy",
    "LanguageError",
    "Split",
    "World",
    "Worldbook",
]
