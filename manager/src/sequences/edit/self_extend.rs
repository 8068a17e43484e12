//! Self-extend: neighboring tokens that are far behind share a position.

use crate::error::Error;
use crate::sequences::SeqId;
use crate::sequences::positions::MAX_POSITION;
use crate::slots::bits::zeros;
use crate::state::State;

struct Grouping {
    /// The first position that is not grouped yet.
    ga_i: i64,
    /// Positions that become one.
    ga_n: i64,
    grouped: i64,
}

impl Grouping {
    /// Groups as many of the positions from `ga_i` to before `n_past` as are whole widths.
    fn new(n_past: i64, ga_i: i64, ga_n: i64, ga_w: i64) -> Result<Self, Error> {
        for (name, got) in [("ga_n", ga_n), ("ga_w", ga_w)] {
            Error::check_range(name, got, 1, MAX_POSITION)?;
        }
        if ga_w % ga_n != 0 {
            return Err(Error::GroupWidth { ga_n, ga_w });
        }
        Ok(Self { ga_i, ga_n, grouped: (n_past - ga_i).max(0) / ga_w * ga_w })
    }

    fn position(&self, position: i64) -> i64 {
        let behind = position - self.ga_i;
        let groups = behind.min(self.grouped) / self.ga_n;
        self.ga_i + groups + (behind - self.grouped).max(0)
    }

    /// The first position that is not grouped then.
    fn end(&self) -> i64 {
        self.ga_i + self.grouped / self.ga_n
    }
}

impl State {
    /// Groups positions; returns the one of the next token.
    pub(crate) fn self_extend(&mut self, seq: SeqId, ga_n: i64, ga_w: i64) -> Result<i64, Error> {
        let sequence = self.intact(seq)?;
        let (n_past, ga_i) = (sequence.positions.next(), sequence.ga_i);
        let grouping = Grouping::new(n_past, ga_i, ga_n, ga_w)?;
        if grouping.grouped == 0 {
            return Ok(n_past);
        }
        if ga_n > 1 {
            let rows = sequence.positions.rows(ga_i..i64::MAX);
            self.check_shiftable(seq)?;
            self.map_positions(seq, rows, false, |position| grouping.position(position))?;
        }
        let sequence = &mut self.sequences[seq];
        let moved = |gone: i64| if gone < ga_i { gone } else { grouping.position(gone) };
        (sequence.ga_i, sequence.gone) = (grouping.end(), sequence.gone.map(moved));
        Ok(sequence.positions.next())
    }
}

/// The positions of `n` tokens that were appended one after the other, each after [self-extend], the position of the
/// next, and the first one that is not grouped.
///
/// [self-extend]: crate::Manager::self_extend
///
/// # Errors
/// [`Error::Range`], [`Error::GroupWidth`], [`Error::OutOfMemory`].
pub fn self_extend_positions(n: usize, ga_n: i64, ga_w: i64) -> Result<(Vec<i64>, i64, i64), Error> {
    let mut positions = zeros::<i64>(n)?;
    let n = n as i64; // this many numbers are in memory
    let grouping = Grouping::new(n, 0, ga_n, ga_w)?;
    (0..).zip(&mut positions).for_each(|(token, position)| *position = grouping.position(token));
    Ok((positions, grouping.position(n), grouping.end()))
}
