//! Where lanes of a warp, or all threads of a block, wait for each other.

use super::{Fault, Machine, WARP, Warp, lanes, mask_of};
use crate::code::{Instruction, Kind, Register, Shuffle};

impl Machine<'_> {
    /// Makes a join of a warp if all its lanes have come.
    pub(super) fn join_warp(&mut self, active: u32, kind: &Kind) -> Result<(), Fault> {
        let (Kind::SyncWarp(needed) | Kind::Shuffle(_, [.., needed], _)) = *kind else { return Ok(()) };
        let warp = &self.warps[self.w];
        let is_here = |lane: &usize| warp.at[*lane] as usize == self.at;
        let here: u32 = lanes(warp.waiting).filter(is_here).map(|lane| 1 << lane).sum();
        let masks = self.read(needed, here)?;
        let mask = masks[active.trailing_zeros() as usize] as u32;
        if let Some(lane) = lanes(here).find(|&lane| masks[lane] as u32 != mask || mask >> lane & 1 == 0) {
            return self.fault(lane, "joins lanes of another mask");
        }
        if mask & !here != 0 {
            return Ok(());
        }
        match *kind {
            Kind::Shuffle(mode, from, to) => self.shuffle(mask, mode, from, to)?,
            // One of a part of the warp orders nothing here: no kernel has one.
            _ => self.warps[self.w].joins += u32::from(mask == u32::MAX),
        }
        let warp = &mut self.warps[self.w];
        (warp.ready, warp.waiting) = (warp.ready | mask, warp.waiting & !mask);
        self.put(mask, self.at as u32 + 1);
        Ok(())
    }

    fn shuffle(
        &mut self,
        mask: u32,
        mode: Shuffle,
        from: [Register; 4],
        [to, is_valid]: [Register; 2],
    ) -> Result<(), Fault> {
        self.check_written(&from, mask)?;
        let [value, argument, clamp, _] = from.map(|from| self.lanes(from));
        let (mut result, mut valid) = ([0; 32], [0; 32]);
        for lane in lanes(mask) {
            let (b, c) = (argument[lane] as usize & 31, clamp[lane] as usize);
            let segment = c >> 8 & 31;
            let (least, most) = (lane & segment, lane & segment | c & 31 & !segment);
            let (from, is_valid) = match mode {
                Shuffle::Up => (lane.wrapping_sub(b), lane >= most + b),
                Shuffle::Down => (lane + b, lane + b <= most),
                Shuffle::Xor => (lane ^ b, lane ^ b <= most),
                Shuffle::Index => (least | b & !segment, least | b & !segment <= most),
            };
            let from = if is_valid { from } else { lane };
            if mask >> from & 1 == 0 {
                return self.fault(lane, format!("shuffles from lane {from}, which is not in the mask"));
            }
            (result[lane], valid[lane]) = (value[from], is_valid.into());
        }
        self.write(to, mask, &result);
        self.write(is_valid, mask, &valid);
        Ok(())
    }

    /// Makes the barrier that all threads wait at; a fault if they wait at different ones, or have ended.
    pub(super) fn join_block(&mut self) -> Result<(), Fault> {
        let waits = |warp: &Warp| lanes(warp.waiting).next().map(|lane| warp.at[lane]);
        let Some(place) = self.warps.iter().find_map(waits) else { return Ok(()) };
        let Instruction { line, kind, .. } = &self.code.instructions[place as usize];
        for (w, lane) in (0..self.warps.len()).flat_map(|w| (0..WARP as usize).map(move |lane| (w, lane))) {
            let warp = &self.warps[w];
            let has_ended = warp.waiting >> lane & 1 == 0;
            if has_ended || warp.at[lane] != place {
                (self.w, self.at) = (w, if has_ended { place } else { warp.at[lane] } as usize);
                let what = if has_ended { "has ended" } else { "waits here" };
                return self.fault(lane, format!("{what} while others wait in line {line}"));
            }
        }
        self.at = place as usize;
        let Kind::SyncBlock(reduced) = kind else {
            return self.fault(0, "waits for lanes of another mask");
        };
        if let Some([to, value]) = *reduced {
            let mut holds = 0;
            for w in 0..self.warps.len() {
                self.w = w;
                holds |= mask_of(self.read(value, u32::MAX)?);
            }
            for w in 0..self.warps.len() {
                self.w = w;
                self.write(to, u32::MAX, &[u64::from(holds != 0); 32]);
            }
        }
        self.now.interval += 1;
        for warp in &mut self.warps {
            (warp.ready, warp.waiting, warp.joins, warp.steps) = (u32::MAX, 0, 0, 0);
            warp.at = [place + 1; 32];
        }
        Ok(())
    }
}
