//! Random numbers, people, and their names and facts; see `world.py`, which defines all of them.

use crate::{Error, Result};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A hash of a 64-bit number: the finaliser of splitmix64.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A hash of several numbers; their order matters.
#[must_use]
pub fn mix_all(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state, part| mix(state.wrapping_add(GOLDEN) ^ part))
}

/// The random numbers of one document.
pub struct Stream {
    state: u64,
}

impl Stream {
    /// The stream of a key.
    #[must_use]
    pub fn new(key: &[u64]) -> Stream {
        Stream { state: mix_all(key) }
    }

    /// An integer below `total`.
    pub fn below(&mut self, total: u64) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        scale(mix(self.state), total)
    }
}

fn scale(hash: u64, total: u64) -> u64 {
    ((u128::from(hash) * u128::from(total)) >> 64) as u64
}

/// Neighbouring ranks of equal probability.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// The lowest rank.
    pub first: u64,
    /// The number of ranks.
    pub size: u64,
    /// The weight of the whole bucket.
    pub weight: u64,
}

/// The people of a world.
#[derive(Debug)]
pub struct World {
    /// The seed of the world.
    pub seed: u64,
    /// The buckets in the order of their ranks.
    pub buckets: Vec<Bucket>,
    /// The 32 syllables for each of the six places of a name.
    pub syllables: Vec<Vec<String>>,
}

/// A person that has been drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Person {
    pub(crate) rank: u64,
    pub(crate) number: u64,
    /// The probability of the rank.
    pub(crate) share: f64,
}

/// A world prepared for drawing.
#[derive(Debug)]
pub(crate) struct People {
    world: World,
    cumulative: Vec<u64>,
    round_keys: [u64; 4],
    fact_key: u64,
}

impl People {
    pub(crate) fn new(world: World) -> Result<People> {
        if world.syllables.len() != 6 || world.syllables.iter().any(|place| place.len() != 32) {
            return Err(Error::Program("names need 32 syllables for each of six places"));
        }
        let num_people: u128 = world.buckets.iter().map(|bucket| u128::from(bucket.size)).sum();
        if num_people < 2 {
            return Err(Error::Program("a world needs two people"));
        }
        if world.buckets.iter().any(|bucket| bucket.size == 0 || bucket.weight == 0) {
            return Err(Error::Program("a bucket has no people or the weight 0"));
        }
        if world.buckets.iter().any(|bucket| u128::from(bucket.first) + u128::from(bucket.size) > 1 << 30) {
            return Err(Error::Program("a rank has more than 30 bits"));
        }
        let mut cumulative = Vec::new();
        cumulative.try_reserve_exact(world.buckets.len())?;
        let mut total = 0_u64;
        for bucket in &world.buckets {
            total = total.checked_add(bucket.weight).ok_or(Error::Program("weights of people overflow"))?;
            cumulative.push(total);
        }
        let round_keys = [0, 1, 2, 3].map(|number| mix_all(&[world.seed, 1, number]));
        let fact_key = mix_all(&[world.seed, 2]);
        Ok(People { world, cumulative, round_keys, fact_key })
    }

    pub(crate) fn seed(&self) -> u64 {
        self.world.seed
    }

    /// A person other than the one with the rank `excluded`, if it is not 0.
    pub(crate) fn draw(&self, stream: &mut Stream, excluded: u64) -> Person {
        let total = self.cumulative.last().copied().unwrap_or(1);
        loop {
            let drawn = stream.below(total);
            let bucket = self.world.buckets[self.cumulative.partition_point(|&sum| sum <= drawn)];
            let rank = bucket.first + stream.below(bucket.size);
            if rank != excluded {
                let share = bucket.weight as f64 / total as f64 / bucket.size as f64;
                return Person { rank, number: self.number_of(rank), share };
            }
        }
    }

    fn number_of(&self, rank: u64) -> u64 {
        let (mut left, mut right) = (rank >> 15, rank & 0x7FFF);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & 0x7FFF));
        }
        (left << 15) | right
    }

    /// The value of a fact about a person.
    pub(crate) fn fact(&self, number: u64, kind: u64, num_values: usize) -> usize {
        let hash = mix(mix(self.fact_key ^ number).wrapping_add(kind.wrapping_mul(GOLDEN)));
        scale(hash, num_values as u64) as usize
    }

    /// The syllables of a name; the last name begins at the fourth one.
    pub(crate) fn spell(&self, number: u64) -> [&str; 6] {
        std::array::from_fn(|place| {
            self.world.syllables[place][(number >> (25 - 5 * place) & 31) as usize].as_str()
        })
    }

    pub(crate) fn is_woman(number: u64) -> bool {
        number >> 15 & 31 < 16
    }
}
