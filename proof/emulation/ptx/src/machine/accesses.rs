//! Accesses to memory: where lanes read and write, whether they may, and what it costs.

use super::{Fault, Machine, lanes};
use crate::arithmetic::Lanes;
use crate::code::{Access, Register, Space};
use crate::memory::Use;
use crate::shadow::{Conflict, Now};

impl Machine<'_> {
    /// The lanes' addresses of so many bytes: all aligned.
    fn addresses(&mut self, mask: u32, access: &Access, bytes: u32) -> Result<Lanes, Fault> {
        let addresses = self.read(access.base, mask)?.map(|base| base.wrapping_add(access.offset));
        for lane in lanes(mask) {
            if !addresses[lane].is_multiple_of(bytes.into()) {
                let message = format!("accesses {bytes} bytes at {:#x}, which is no multiple of it", addresses[lane]);
                return self.fault(lane, message);
            }
        }
        if self.shape.counts && access.space != Space::Param {
            self.count(mask, access, &addresses, bytes);
        }
        Ok(addresses)
    }

    /// Checks an access of a lane: that the bytes are there, may be used so, and are used by no other thread now.
    fn check(&mut self, lane: usize, access: &Access, address: u64, bytes: u32, how: Use) -> Result<(), Fault> {
        let now = Now { joins: self.warps[self.w].joins, thread: self.thread(lane), ..self.now };
        let conflict = match access.space {
            Space::Shared if address.saturating_add(bytes.into()) > self.shared.len() as u64 => {
                return self.fault(lane, format!("{how:?} of {bytes} bytes at {address}, beyond shared memory"));
            }
            Space::Shared => match how {
                Use::Write => self.shared_shadow.write(address as usize, bytes, now),
                _ => self.shared_shadow.read(address as usize, bytes, now),
            },
            _ => match (self.memory.check(&mut self.region, address, bytes.into(), how), how) {
                (Err(message), _) => return self.fault(lane, message),
                (Ok(true), Use::Read) => self.global_shadow.read(address, bytes, now, false),
                (Ok(true), Use::ReadOnly) => self.global_shadow.read(address, bytes, now, true),
                (Ok(true), Use::Write) => self.global_shadow.write(address, bytes, now),
                (Ok(_), _) => Ok(()),
            },
        };
        conflict.or_else(|conflict| {
            let message = match conflict {
                Conflict::Uninitialized => "reads shared memory that is not written".to_owned(),
                Conflict::WithWrite(other) => format!("{how:?} of what thread {other} writes, in no order"),
                Conflict::WithRead(other) => format!("{how:?} of what thread {other} reads, in no order"),
                Conflict::WithReadOnly => "writes what is read through the read-only cache".to_owned(),
            };
            self.fault(lane, message)
        })
    }

    fn bytes(&self, access: &Access, address: u64) -> u64 {
        let mut word = [0; 8];
        let to = &mut word[..access.of.bytes() as usize];
        match access.space {
            Space::Shared => to.copy_from_slice(&self.shared[address as usize..][..to.len()]),
            // SAFETY: `check` has found the bytes in a region, which is valid: see `run`.
            _ => unsafe { self.memory.read(address, to) },
        }
        u64::from_le_bytes(word)
    }

    fn set_bytes(&mut self, access: &Access, address: u64, value: u64) {
        let word = &value.to_le_bytes()[..access.of.bytes() as usize];
        match access.space {
            Space::Shared => self.shared[address as usize..][..word.len()].copy_from_slice(word),
            // SAFETY: `check` has found the bytes in a region that may be written, which is valid: see `run`.
            _ => unsafe { self.memory.write(address, word) },
        }
    }

    pub(super) fn load(&mut self, mask: u32, access: &Access, to: &[Register]) -> Result<(), Fault> {
        let (each, all) = (access.of.bytes(), access.of.bytes() * to.len() as u32);
        let addresses = self.addresses(mask, access, all)?;
        let how = if access.nc { Use::ReadOnly } else { Use::Read };
        let mut values = [[0; 32]; 4];
        for lane in lanes(mask) {
            let address = addresses[lane];
            if access.space == Space::Param {
                let parameters = self.shape.parameters.get(address as usize..).and_then(|at| at.get(..all as usize));
                let Some(parameters) = parameters else { return self.fault(lane, "reads beyond the parameters") };
                for (values, part) in values.iter_mut().zip(parameters.chunks(each as usize)) {
                    values[lane] = part.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
                }
                continue;
            }
            self.check(lane, access, address, all, how)?;
            for (i, values) in (0..).zip(&mut values[..to.len()]) {
                values[lane] = self.bytes(access, address + i * u64::from(each));
            }
        }
        to.iter().zip(&values).for_each(|(to, values)| self.write(*to, mask, values));
        Ok(())
    }

    pub(super) fn store(&mut self, mask: u32, access: &Access, from: &[Register]) -> Result<(), Fault> {
        let (each, all) = (access.of.bytes(), access.of.bytes() * from.len() as u32);
        let addresses = self.addresses(mask, access, all)?;
        self.check_written(from, mask)?;
        for lane in lanes(mask) {
            self.check(lane, access, addresses[lane], all, Use::Write)?;
            for (i, &from) in (0..).zip(from) {
                self.set_bytes(access, addresses[lane] + i * u64::from(each), self.lanes(from)[lane]);
            }
        }
        Ok(())
    }

    pub(super) fn compare_and_swap(
        &mut self,
        mask: u32,
        access: &Access,
        to: Register,
        numbers: [Register; 2],
    ) -> Result<(), Fault> {
        let addresses = self.addresses(mask, access, access.of.bytes())?;
        self.check_written(&numbers, mask)?;
        let mut before = [0; 32];
        for lane in lanes(mask) {
            self.check(lane, access, addresses[lane], access.of.bytes(), Use::Atomic)?;
            let [old, new] = numbers.map(|number| self.lanes(number)[lane]);
            before[lane] = self.bytes(access, addresses[lane]);
            if before[lane] == old & access.of.mask() {
                self.set_bytes(access, addresses[lane], new);
            }
        }
        self.write(to, mask, &before);
        Ok(())
    }

    /// Counts the sectors of an access to global memory, or the passes of one to shared memory.
    fn count(&mut self, mask: u32, access: &Access, addresses: &Lanes, bytes: u32) {
        let mut first: Vec<u64> = lanes(mask).map(|lane| addresses[lane]).collect();
        if access.space == Space::Global {
            first.sort_unstable();
            first.dedup();
            self.counts.sectors[1] += (first.len() as u64 * u64::from(bytes)).div_ceil(32);
            first.iter_mut().for_each(|address| *address /= 32);
            first.dedup();
            self.counts.sectors[0] += first.len() as u64;
            return;
        }
        // 8 bytes a lane are half a warp at once, 16 a quarter.
        for part in first.chunks(128 / bytes.max(4) as usize) {
            let mut words: Vec<_> = part.iter().flat_map(|at| at / 4..(at + u64::from(bytes)).div_ceil(4)).collect();
            words.sort_unstable();
            words.dedup();
            let mut banks = [0; 32];
            words.iter().for_each(|word| banks[(word % 32) as usize] += 1);
            self.counts.passes[0] += banks.into_iter().max().unwrap_or(0);
            self.counts.passes[1] += 1;
        }
    }
}
