//! The ids of a word in 16 bytes: up to seven ids of 16 bits or five of 24 bits, and their number.

use super::Id;

/// Packed ids; the default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed(pub(crate) [u64; 2]);

/// Instead of the number: the ids are stored elsewhere.
const SPILLED: u64 = 0xff;
/// The number of ids is in the last byte.
const NUMBER: u32 = 56;

impl Packed {
    /// A reference to ids that begin at `start` of another array.
    pub(crate) fn of_spilled(start: usize, num_ids: usize) -> Packed {
        Packed([start as u64, num_ids as u64 | SPILLED << NUMBER])
    }

    /// The start and number of ids that are stored elsewhere.
    pub(crate) fn spilled(self) -> Option<(usize, usize)> {
        let Packed([start, number]) = self;
        (number >> NUMBER == SPILLED).then_some((start as usize, (number & !(SPILLED << NUMBER)) as usize))
    }

    /// The number of ids; more than can be packed if they are stored elsewhere.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        (self.0[1] >> NUMBER) as usize
    }
}

/// A way to pack ids.
pub(crate) trait Packing {
    /// The number of ids that fit.
    const MOST: usize;
    /// Pack these ids, if they fit.
    fn pack(ids: &[u32]) -> Option<Packed>;
    /// The ids, followed by undefined values.
    fn unpack<I: Id>(packed: Packed) -> [I; ROOM];
}

/// The number of values that unpacking writes, including undefined ones.
pub(crate) const ROOM: usize = 8;

/// Ids below 2^16.
pub(crate) struct Narrow;

impl Narrow {
    /// Whether an id can be packed this way.
    pub(crate) fn fits(id: u32) -> bool {
        id >> 16 == 0
    }
}

impl Packing for Narrow {
    const MOST: usize = 7;

    fn pack(ids: &[u32]) -> Option<Packed> {
        pack::<16>(ids, Narrow::MOST)
    }

    #[inline(always)]
    fn unpack<I: Id>(Packed([low, high]): Packed) -> [I; ROOM] {
        let id = |half: u64, index: u32| I::from_id(u32::from((half >> (16 * index)) as u16));
        [id(low, 0), id(low, 1), id(low, 2), id(low, 3), id(high, 0), id(high, 1), id(high, 2), id(high, 3)]
    }
}

/// Ids below 2^24; words with higher ones are spilled.
pub(crate) struct Wide;

impl Packing for Wide {
    const MOST: usize = 5;

    fn pack(ids: &[u32]) -> Option<Packed> {
        pack::<24>(ids, Wide::MOST)
    }

    #[inline(always)]
    fn unpack<I: Id>(Packed([low, high]): Packed) -> [I; ROOM] {
        let id = |bits: u64| I::from_id(bits as u32 & 0xff_ffff);
        let middle = low >> 48 | high << 16;
        [
            id(low),
            id(low >> 24),
            id(middle),
            id(high >> 8),
            id(high >> 32),
            I::default(),
            I::default(),
            I::default(),
        ]
    }
}

fn pack<const BITS: u32>(ids: &[u32], most: usize) -> Option<Packed> {
    if ids.len() > most || ids.iter().any(|&id| id >> BITS != 0) {
        return None;
    }
    let mut bits = (ids.len() as u128) << (64 + NUMBER);
    for (index, &id) in (0..).zip(ids) {
        bits |= u128::from(id) << (BITS * index);
    }
    Some(Packed([bits as u64, (bits >> 64) as u64]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<P: Packing>(highest: u32) {
        for len in 1..=P::MOST {
            let ids: Vec<u32> = (0..len as u32).map(|index| highest - 9_999 * index).collect();
            let packed = P::pack(&ids).unwrap_or_default();
            assert_eq!((packed.len(), packed.spilled()), (len, None));
            assert_eq!(&P::unpack::<u32>(packed)[..len], ids);
        }
        assert_eq!(P::pack(&[highest + 1]), None);
        assert_eq!(P::pack(&vec![1; P::MOST + 1]), None);
    }

    #[test]
    fn ids_that_fit_are_unpacked_and_larger_ones_are_rejected() {
        check::<Narrow>((1 << 16) - 1);
        check::<Wide>((1 << 24) - 1);
        assert!(Narrow::fits((1 << 16) - 1) && !Narrow::fits(1 << 16));
    }

    #[test]
    fn a_reference_is_not_a_number_of_ids() {
        let packed = Packed::of_spilled(1 << 40, 1000);
        assert_eq!(packed.spilled(), Some((1 << 40, 1000)));
        assert!(packed.len() > Narrow::MOST.max(Wide::MOST));
        assert_eq!((Packed::default().len(), Packed::default().spilled()), (0, None));
    }
}
