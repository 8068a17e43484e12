//! The heads of a call: where they lie, and the steps of their groups.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use kvcache_schema::ElementType;

use crate::case::NanRule;
use crate::oracle::arithmetic::{Group, Steps};
use crate::oracle::call::SharedAttributes;
use crate::oracle::decisions::{Behavior, GroupOf, HeadAxes, Outside, Shares};
use crate::oracle::numbers::read;
use crate::oracle::plan::{Place, Plan, Rows};
use crate::result::CallResult;
use crate::tensor::Tensor;

/// `cache` and `scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "described above")]
pub struct State {
    pub cache: Tensor,
    pub scale: Option<Tensor>,
}

impl State {
    /// Whether a call left this state. A call without a cache has left none.
    pub(crate) fn is_of(&self, made: &CallResult, nan: NanRule) -> bool {
        made.cache.as_ref().is_none_or(|cache| nan.are_alike(&self.cache, cache))
            && match (&self.scale, &made.scale) {
                (Some(scale), Some(made)) => nan.are_alike(scale, made),
                (scale, made) => scale.is_none() && made.is_none(),
            }
    }

    /// Whether it is the same.
    pub(crate) fn is(&self, other: &Self, nan: NanRule) -> bool {
        nan.are_alike(&self.cache, &other.cache)
            && self.scale.iter().zip(&other.scale).all(|(scale, other)| nan.are_alike(scale, other))
    }
}

/// The call reached outside of the cache, and ended there.
pub(super) struct OutsideOfCache;

/// Why a call is not predicted to its end.
pub(super) enum Stop {
    OutsideOfCache,
    /// The call that was made did something else.
    Contradicted,
}

impl From<OutsideOfCache> for Stop {
    fn from(OutsideOfCache: OutsideOfCache) -> Self {
        Self::OutsideOfCache
    }
}

/// A call that is made.
pub(super) struct Run<'a> {
    pub(super) attributes: SharedAttributes,
    pub(super) current: [&'a Tensor; 2],
    pub(super) t1: ElementType,
    pub(super) plan: &'a Plan,
    pub(super) behavior: &'a Behavior,
    pub(super) before: &'a State,
    pub(super) after: State,
    /// The largest magnitudes of values of many tokens.
    pub(super) amaxes: RefCell<HashMap<[usize; 3], f64>>,
}

/// A head of a current token: the key (0) or the value (1) in a row of `current_key` or `current_value`.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct CurrentHead {
    pub(super) source: usize,
    pub(super) row: usize,
    pub(super) h: usize,
}

impl<'a> Run<'a> {
    /// The step and scale of group `g` of a current head, and the scale number `scale`, which it replaces.
    pub(super) fn steps(&self, head: CurrentHead, g: usize, scale: usize) -> Steps {
        let (group, conversion) = (self.group(), self.behavior.conversion);
        let old = self.before.scale.as_ref().map_or(0.0, |before| read(conversion, group.t3, before.bytes(), scale));
        let amax = || group.amax(&self.sharing(head, g));
        let known = match self.behavior.shares {
            Shares::Tensor => [head.source, 0, 0],
            Shares::Tokens => [head.source, head.h, g],
            _ => return group.steps(amax(), old),
        };
        group.steps(*self.amaxes.borrow_mut().entry(known).or_insert_with(amax), old)
    }

    /// The values that have the same scale as those of a group.
    pub(super) fn sharing(&self, CurrentHead { source, row, h }: CurrentHead, g: usize) -> Vec<f64> {
        let (behavior, groups, shares) = (self.behavior, self.groups(), self.behavior.shares);
        let sources = if shares == Shares::KeyAndValue { 0..2 } else { source..source + 1 };
        let rows = match shares {
            Shares::Tokens | Shares::Tensor => 0..self.rows(),
            Shares::TokensBefore => 0..row + 1,
            _ => row..row + 1,
        };
        let heads = match shares {
            Shares::Heads | Shares::Token | Shares::Tensor => 0..self.plan.num_heads,
            _ => h..h + 1,
        };
        let of_head = match shares {
            Shares::Head | Shares::Token | Shares::Tensor => 0..groups,
            Shares::GroupsBefore => 0..g + 1,
            _ => g..g + 1,
        };
        let quant_group = self.attributes.quant_group as usize;
        let members: Vec<_> = match behavior.group {
            GroupOf::Neighbors => (of_head.start * quant_group..of_head.end * quant_group).collect(),
            other => (0..self.plan.head_dim).filter(|&d| of_head.contains(&other.of(d, quant_group, groups))).collect(),
        };
        let mut values = Vec::new();
        for source in sources {
            let bytes = self.current[source].bytes();
            for (row, h) in rows.clone().flat_map(|row| heads.clone().map(move |h| (row, h))) {
                let first = self.current_head(CurrentHead { source, row, h }) * self.plan.head_dim;
                let x = |d: &usize| behavior.current.of(self.t1, read(behavior.conversion, self.t1, bytes, first + d));
                values.extend(members.iter().map(x));
            }
        }
        values
    }

    /// The number of a head in `rows`; none if the place is outside of the cache and accesses there are skipped.
    pub(super) fn head(
        &self,
        rows: &Rows,
        place: Place,
        layer: usize,
        kv: usize,
        h: usize,
    ) -> Result<Option<usize>, OutsideOfCache> {
        let last = rows.slot.len as i64 - 1;
        let place = match self.behavior.outside {
            _ if rows.contains(place) => place,
            Outside::Skipped => return Ok(None),
            Outside::Flat => place,
            Outside::FromEnd if (-last - 1..0).contains(&place.slot) => Place { slot: place.slot + last + 1, ..place },
            Outside::Clamped if last >= 0 => Place { slot: place.slot.clamp(0, last), ..place },
            Outside::FromEnd | Outside::Clamped | Outside::Fails => return Err(OutsideOfCache),
        };
        let row = usize::try_from(rows.row(place, layer, kv, h)).ok().filter(|&row| row < rows.count());
        row.map(Some).ok_or(OutsideOfCache)
    }

    /// The bytes of head number `row`.
    pub(super) fn head_bytes(&self, element: ElementType, row: usize) -> Range<usize> {
        let bytes = self.plan.head_dim * element.bits() / 8;
        row * bytes..(row + 1) * bytes
    }

    /// Whether elements of the cache are copies of those of T1.
    pub(super) fn copies(&self, t2: ElementType) -> bool {
        self.t1 == t2 && (!self.behavior.copies_numbers || t2 == ElementType::Int8)
    }

    pub(super) fn group(&self) -> Group<'a> {
        let t3 = self.before.scale.as_ref().map_or(self.t1, Tensor::element);
        Group { behavior: self.behavior, t1: self.t1, t3, quant_bit: self.attributes.quant_bit }
    }

    /// The number of a current head in `current_key` or `current_value`.
    pub(super) fn current_head(&self, CurrentHead { source, row, h }: CurrentHead) -> usize {
        match (self.behavior.current_heads, source) {
            (HeadAxes::HeadsFirst, _) | (HeadAxes::HeadsFirstOfKeys, 0) | (HeadAxes::HeadsFirstOfValues, 1) => {
                h * self.rows() + row
            }
            _ => row * self.plan.num_heads + h,
        }
    }

    /// The current tokens of the call.
    pub(super) fn rows(&self) -> usize {
        self.current[0].bytes().len() / (self.t1.align() * self.plan.num_heads * self.plan.head_dim).max(1)
    }

    /// The groups of a head.
    pub(super) fn groups(&self) -> usize {
        self.plan.head_dim / self.attributes.quant_group as usize
    }
}
