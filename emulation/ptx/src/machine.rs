//! Runs a launch: blocks one after the other, their warps in turns, and of a warp all lanes that are at one place.
//!
//! ```text
//! for each block:
//!     until all threads have ended:
//!         for each warp, in the order that is asked for:
//!             while lanes are ready: those at one place run until they part, meet others, wait or end
//!         all threads wait at one barrier: they go on
//! ```
//! A join of a warp's lanes is made when the last lane of its mask has come.

use std::cell::RefCell;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::arithmetic::{Lanes, Type};
use crate::decode::{Access, CONSTANT, Code, Join, Kind, Register, SHARED_WINDOW, Shuffle, Space, Together};
use crate::memory::{Memory, Use};
use crate::shadow::{Conflict, GlobalShadow, Now, SharedShadow};

const WARP: u32 = 32;

/// Instructions that a warp may run between two barriers of its block before it is taken not to end.
const MOST_STEPS: u64 = 1 << 26;

/// The order of warps between two barriers, and of a warp's lanes that are at different places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Forward,
    Backward,
    Random(u32),
}

/// A violation of the rules for kernels, such as an access outside of all memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kernel}, line {line}, block {block}, thread {thread}: {message}")]
pub struct Fault {
    pub kernel: String,
    /// Of the module's text.
    pub line: u32,
    pub block: u32,
    pub thread: u32,
    pub message: String,
}

/// What a launch has done: the same each time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions of warps by their full names.
    pub instructions: BTreeMap<String, u64>,
    /// Sectors of 32 bytes that the warps' accesses to global memory touch, and how many their bytes would fill.
    pub sectors: [u64; 2],
    /// Passes over the banks of shared memory, and how many there would be without conflicts.
    pub passes: [u64; 2],
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        other
            .instructions
            .iter()
            .for_each(|(name, count)| *self.instructions.entry(name.clone()).or_default() += count);
        (0..2).for_each(|i| self.sectors[i] += other.sectors[i]);
        (0..2).for_each(|i| self.passes[i] += other.passes[i]);
    }

    /// Instructions of warps.
    pub fn total(&self) -> u64 {
        self.instructions.values().sum()
    }
}

struct Warp {
    /// Where each lane is.
    at: [u32; WARP as usize],
    ready: u32,
    waiting: u32,
    /// Which lanes have written each register.
    written: Vec<u32>,
    joins: u32,
    steps: u64,
}

/// A launch's grid and block, and its parameters' bytes.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    pub grid: u32,
    pub block: u32,
    pub parameters: &'a [u8],
    pub order: Order,
    /// Whether anything is counted.
    pub counts: bool,
}

/// Runs a launch of a kernel on memory.
///
/// # Errors
/// [`Fault`].
///
/// # Safety
/// The memory's regions are valid for reads and, where they may be written, for writes, and nothing else uses them.
pub unsafe fn run(code: &Code, memory: &Memory, shape: Shape<'_>) -> Result<Counts, Fault> {
    thread_local! {
        /// The registers of earlier launches, whose memory is used again.
        static REGISTERS: RefCell<Vec<Lanes>> = const { RefCell::new(Vec::new()) };
    }
    let warps = shape.block.div_ceil(WARP) as usize;
    let mut registers = REGISTERS.take();
    if registers.len() < warps * code.registers.len() {
        registers.resize(warps * code.registers.len(), [0; 32]);
    }
    let mut machine = Machine {
        code,
        memory,
        shape,
        registers,
        warps: Vec::new(),
        shared: vec![0xa5; code.shared_bytes],
        shared_shadow: SharedShadow::new(code.shared_bytes),
        global_shadow: GlobalShadow::default(),
        now: Now { interval: 0, block_began: 0, joins: 0, thread: 0 },
        block: 0,
        executed: vec![0; code.instructions.len()],
        counts: Counts::default(),
        random: if let Order::Random(seed) = shape.order { u64::from(seed) << 1 | 1 } else { 0 },
        region: 0,
    };
    let mut done = Ok(());
    if shape.parameters.len() < code.parameter_bytes || !shape.block.is_multiple_of(WARP) {
        done = Err(machine.fault(0, 0, "other parameters, or a block that is not whole warps".to_owned()));
    }
    for block in 0..shape.grid {
        done = done.and_then(|()| machine.run_block(block));
    }
    REGISTERS.set(std::mem::take(&mut machine.registers));
    done.map(|()| if shape.counts { machine.counts() } else { Counts::default() })
}

struct Machine<'a> {
    code: &'a Code,
    memory: &'a Memory,
    shape: Shape<'a>,
    /// Those of each warp, one warp behind the other.
    registers: Vec<Lanes>,
    warps: Vec<Warp>,
    shared: Vec<u8>,
    shared_shadow: SharedShadow,
    global_shadow: GlobalShadow,
    now: Now,
    block: u32,
    /// How often warps have run each instruction.
    executed: Vec<u64>,
    counts: Counts,
    random: u64,
    /// The region of the last access.
    region: usize,
}

/// The lanes of a mask.
fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < WARP).then_some(lane as usize)
    })
}

fn mask_of(lanes: &Lanes) -> u32 {
    (0..32).map(|i| ((lanes[i] & 1) as u32) << i).sum()
}

impl Machine<'_> {
    fn counts(self) -> Counts {
        let mut counts = self.counts;
        for (instruction, &count) in self.code.instructions.iter().zip(&self.executed).filter(|(_, count)| **count > 0)
        {
            *counts.instructions.entry(self.code.names[instruction.name as usize].clone()).or_default() += count;
        }
        counts
    }

    fn fault(&self, at: usize, thread: u32, message: String) -> Fault {
        let line = self.code.instructions[at].line;
        Fault { kernel: self.code.kernel.clone(), line, block: self.block, thread, message }
    }

    fn next_random(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    fn run_block(&mut self, block: u32) -> Result<(), Fault> {
        self.block = block;
        self.now.interval += 1;
        self.now.block_began = self.now.interval;
        // Shared memory begins with arbitrary contents.
        self.shared.fill(0xa5);
        let count = self.code.registers.len();
        self.warps.truncate(0);
        for w in 0..self.shape.block / WARP {
            let lane = std::array::from_fn(|lane| lane as u64);
            let special = [
                lane.map(|lane| lane + u64::from(w * WARP)),
                [block.into(); 32],
                [self.shape.block.into(); 32],
                [self.shape.grid.into(); 32],
                lane,
                [w.into(); 32],
            ];
            let mut written = vec![0; count];
            written[..special.len()].fill(u32::MAX);
            self.registers[w as usize * count..][..special.len()].copy_from_slice(&special);
            self.warps.push(Warp { at: [0; 32], ready: u32::MAX, waiting: 0, written, joins: 0, steps: 0 });
        }
        let mut order: Vec<_> = (0..self.warps.len()).collect();
        loop {
            match self.shape.order {
                Order::Forward => (),
                Order::Backward => order.sort_by_key(|&w| std::cmp::Reverse(w)),
                Order::Random(_) => (1..order.len()).for_each(|i| order.swap(i, self.next_random() % (i + 1))),
            }
            for &w in &order {
                self.run_warp(w)?;
            }
            if self.warps.iter().all(|warp| warp.waiting == 0) {
                return Ok(());
            }
            self.join_block()?;
        }
    }

    /// Runs a warp's lanes until none is ready.
    fn run_warp(&mut self, w: usize) -> Result<(), Fault> {
        while self.warps[w].ready != 0 {
            let Warp { at, ready, .. } = self.warps[w];
            let places = lanes(ready).map(|lane| at[lane]);
            let place = match self.shape.order {
                Order::Forward => places.min(),
                Order::Backward => places.max(),
                Order::Random(_) => {
                    let mut places: Vec<_> = places.collect();
                    places.sort_unstable();
                    places.dedup();
                    Some(places[self.next_random() % places.len()])
                }
            };
            let Some(place) = place else { break };
            let mask = lanes(ready).filter(|&lane| at[lane] == place).map(|lane| 1 << lane).sum();
            self.run_lanes(w, place, mask)?;
        }
        Ok(())
    }

    /// Runs lanes that are at one place until they part, meet others, wait or end.
    fn run_lanes(&mut self, w: usize, mut place: u32, mask: u32) -> Result<(), Fault> {
        let code = self.code;
        let others: Vec<u32> = {
            let warp = &self.warps[w];
            lanes(warp.ready & !mask).map(|lane| warp.at[lane]).collect()
        };
        // Lanes that are behind go first, so that they meet again; those that are ahead only where the order says so.
        let first_other = others.iter().copied().min().filter(|_| self.shape.order == Order::Forward);
        loop {
            if !others.is_empty() && (first_other.is_some_and(|other| place >= other) || others.contains(&place)) {
                self.put(w, mask, place);
                return Ok(());
            }
            let at = place as usize;
            let instruction = &code.instructions[at];
            self.executed[at] += 1;
            let warp = &mut self.warps[w];
            warp.steps += 1;
            if warp.steps > MOST_STEPS {
                return Err(self.fault(at, w as u32 * WARP, "does not end".to_owned()));
            }
            let active = match instruction.guard {
                None => mask,
                Some((guard, negated)) => {
                    let holds = mask_of(self.read(w, at, guard, mask)?);
                    mask & if negated { !holds } else { holds }
                }
            };
            match &instruction.kind {
                Kind::Branch { to } => match mask & !active {
                    0 => place = *to,
                    rest if rest == mask => place += 1,
                    rest => {
                        self.put(w, active, *to);
                        self.put(w, rest, place + 1);
                        return Ok(());
                    }
                },
                _ if active == 0 => place += 1,
                Kind::Compute { compute, to, from } => {
                    let mut result = [0; 32];
                    self.check_written(w, at, from, active)?;
                    compute(&mut result, from.map(|from| self.lanes(w, from)));
                    self.write(w, *to, active, &result);
                    place += 1;
                }
                Kind::Load { access, to } => {
                    self.load(w, at, active, access, to)?;
                    place += 1;
                }
                Kind::Store { access, from } => {
                    self.store(w, at, active, access, from)?;
                    place += 1;
                }
                Kind::Atomic { access, join, of, to, from } => {
                    self.atomic(w, at, active, access, (join, *of), *to, *from)?;
                    place += 1;
                }
                Kind::ActiveMask { to } => {
                    self.write(w, *to, active, &[active.into(); 32]);
                    place += 1;
                }
                Kind::Nothing => place += 1,
                Kind::BranchTo { index, to } => {
                    let index = *self.read(w, at, *index, active)?;
                    for lane in lanes(active) {
                        let Some(&to) = to.get(index[lane] as usize) else {
                            return Err(self.fault(at, self.thread(w, lane), format!("no target {}", index[lane])));
                        };
                        self.put(w, 1 << lane, to);
                    }
                    self.put(w, mask & !active, place + 1);
                    return Ok(());
                }
                Kind::Exit => {
                    self.warps[w].ready &= !active;
                    self.put(w, mask & !active, place + 1);
                    return Ok(());
                }
                Kind::Together { together, mask: needed, to } => {
                    self.put(w, mask & !active, place + 1);
                    self.put(w, active, place);
                    let warp = &mut self.warps[w];
                    warp.ready &= !active;
                    warp.waiting |= active;
                    if !matches!(together, Together::SyncBlock { .. }) {
                        self.join_warp(w, at, active, together, *needed, *to)?;
                        let warp = &self.warps[w];
                        if active == mask && warp.ready & mask == mask && others.is_empty() && warp.ready == mask {
                            place += 1;
                            continue;
                        }
                    }
                    return Ok(());
                }
            }
        }
    }

    fn put(&mut self, w: usize, mask: u32, place: u32) {
        lanes(mask).for_each(|lane| self.warps[w].at[lane] = place);
    }

    fn thread(&self, w: usize, lane: usize) -> u32 {
        w as u32 * WARP + lane as u32
    }

    fn lanes(&self, w: usize, register: Register) -> &Lanes {
        match register & CONSTANT {
            0 => &self.registers[w * self.code.registers.len() + register as usize],
            _ => &self.code.constants[(register ^ CONSTANT) as usize],
        }
    }

    fn check_written(&self, w: usize, at: usize, registers: &[Register], mask: u32) -> Result<(), Fault> {
        for &register in registers.iter().filter(|register| **register & CONSTANT == 0) {
            let missing = mask & !self.warps[w].written[register as usize];
            if missing != 0 {
                let name = &self.code.registers[register as usize];
                let thread = self.thread(w, missing.trailing_zeros() as usize);
                return Err(self.fault(at, thread, format!("reads {name}, which it has not written")));
            }
        }
        Ok(())
    }

    fn read(&self, w: usize, at: usize, register: Register, mask: u32) -> Result<&Lanes, Fault> {
        self.check_written(w, at, &[register], mask)?;
        Ok(self.lanes(w, register))
    }

    fn write(&mut self, w: usize, register: Register, mask: u32, values: &Lanes) {
        self.warps[w].written[register as usize] |= mask;
        let to = &mut self.registers[w * self.code.registers.len() + register as usize];
        match mask {
            u32::MAX => *to = *values,
            _ => lanes(mask).for_each(|lane| to[lane] = values[lane]),
        }
    }

    /// The lanes' addresses, in shared memory or not: all aligned.
    fn addresses(&self, w: usize, at: usize, mask: u32, access: &Access, count: usize) -> Result<Lanes, Fault> {
        let mut addresses = *self.read(w, at, access.base, mask)?;
        let bytes = u64::from(access.bytes) * count as u64;
        for lane in lanes(mask) {
            addresses[lane] = addresses[lane].wrapping_add(access.offset);
            if !addresses[lane].is_multiple_of(bytes) {
                let message = format!("accesses {bytes} bytes at {:#x}, which is no multiple of it", addresses[lane]);
                return Err(self.fault(at, self.thread(w, lane), message));
            }
        }
        Ok(addresses)
    }

    /// Whether an address is that of shared memory, and its place there.
    fn in_shared(access: &Access, address: u64) -> Option<u64> {
        match access.space {
            Space::Shared => Some(address),
            Space::Generic => address.checked_sub(SHARED_WINDOW),
            Space::Global | Space::Param => None,
        }
    }

    fn at(&self, w: usize, lane: usize) -> Now {
        Now { joins: self.warps[w].joins, thread: self.thread(w, lane), ..self.now }
    }

    /// Checks an access of a thread: that the bytes are there, may be used so, and are used by no other thread now.
    fn check(
        &mut self,
        (w, lane, at): (usize, usize, usize),
        access: &Access,
        address: u64,
        bytes: u32,
        how: Use,
    ) -> Result<(), Fault> {
        let now = self.at(w, lane);
        let conflict = match Self::in_shared(access, address) {
            Some(place) => match place.checked_add(bytes.into()) {
                Some(end) if end <= self.shared.len() as u64 => match how {
                    Use::Read | Use::ReadOnly => self.shared_shadow.read(place as usize, bytes, now),
                    Use::Write => self.shared_shadow.write(place as usize, bytes, now),
                    Use::Atomic => Ok(()),
                },
                _ => {
                    let message = format!("{how:?} of {bytes} bytes at {place}, beyond shared memory");
                    return Err(self.fault(at, now.thread, message));
                }
            },
            None => {
                let tracked = match self.memory.check(&mut self.region, address, bytes.into(), how) {
                    Ok(tracked) => tracked,
                    Err(message) => return Err(self.fault(at, now.thread, message)),
                };
                match how {
                    Use::Read | Use::ReadOnly if tracked => {
                        self.global_shadow.read(address, bytes, now, how == Use::ReadOnly)
                    }
                    Use::Write => self.global_shadow.write(address, bytes, now),
                    Use::Read | Use::ReadOnly | Use::Atomic => Ok(()),
                }
            }
        };
        conflict.map_err(|conflict| {
            let message = match conflict {
                Conflict::Uninitialized => "reads shared memory that is not written".to_owned(),
                Conflict::WithWrite(other) => format!("{how:?} of what thread {other} writes, in no order"),
                Conflict::WithRead(other) => format!("{how:?} of what thread {other} reads, in no order"),
                Conflict::WithReadOnly => "writes what is read through the read-only cache".to_owned(),
            };
            self.fault(at, now.thread, message)
        })
    }

    fn bytes(&self, access: &Access, address: u64, bytes: u32) -> u64 {
        let mut word = [0; 8];
        let to = &mut word[..bytes as usize];
        match Self::in_shared(access, address) {
            Some(place) => to.copy_from_slice(&self.shared[place as usize..][..bytes as usize]),
            // SAFETY: `check` has found the bytes in a region, which is valid: see `run`.
            None => unsafe { self.memory.read(address, to) },
        }
        u64::from_le_bytes(word)
    }

    fn set_bytes(&mut self, access: &Access, address: u64, bytes: u32, value: u64) {
        let word = &value.to_le_bytes()[..bytes as usize];
        match Self::in_shared(access, address) {
            Some(place) => self.shared[place as usize..][..bytes as usize].copy_from_slice(word),
            // SAFETY: `check` has found the bytes in a region that may be written, which is valid: see `run`.
            None => unsafe { self.memory.write(address, word) },
        }
    }

    fn load(&mut self, w: usize, at: usize, mask: u32, access: &Access, to: &[(Register, u32)]) -> Result<(), Fault> {
        let addresses = self.addresses(w, at, mask, access, to.len())?;
        let how = if access.nc { Use::ReadOnly } else { Use::Read };
        let bytes = access.bytes * to.len() as u32;
        self.count(mask, access, &addresses, bytes);
        let unused = 64 - 8 * access.bytes;
        let mut values = [[0; 32]; 4];
        for lane in lanes(mask) {
            let address = addresses[lane];
            if access.space == Space::Param {
                let parameters = self.shape.parameters.get(address as usize..).and_then(|at| at.get(..bytes as usize));
                let Some(parameters) = parameters else {
                    return Err(self.fault(at, self.thread(w, lane), "reads beyond the parameters".to_owned()));
                };
                for (values, part) in values.iter_mut().zip(parameters.chunks(access.bytes as usize)) {
                    values[lane] = part.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
                }
            } else {
                self.check((w, lane, at), access, address, bytes, how)?;
                for i in 0..to.len() {
                    values[i][lane] = self.bytes(access, address + i as u64 * u64::from(access.bytes), access.bytes);
                }
            }
        }
        for (&(to, bits), values) in to.iter().zip(&mut values) {
            if access.is_signed {
                let mask = u64::MAX >> (64 - bits);
                *values = values.map(|value| ((value << unused).cast_signed() >> unused).cast_unsigned() & mask);
            }
            self.write(w, to, mask, values);
        }
        Ok(())
    }

    fn store(&mut self, w: usize, at: usize, mask: u32, access: &Access, from: &[Register]) -> Result<(), Fault> {
        let addresses = self.addresses(w, at, mask, access, from.len())?;
        self.check_written(w, at, from, mask)?;
        self.count(mask, access, &addresses, access.bytes * from.len() as u32);
        for lane in lanes(mask) {
            self.check((w, lane, at), access, addresses[lane], access.bytes * from.len() as u32, Use::Write)?;
            for (i, &from) in (0..).zip(from) {
                let value = self.lanes(w, from)[lane];
                self.set_bytes(access, addresses[lane] + i * u64::from(access.bytes), access.bytes, value);
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an instruction")]
    fn atomic(
        &mut self,
        w: usize,
        at: usize,
        mask: u32,
        access: &Access,
        (join, of): (&str, Type),
        to: Option<Register>,
        from: [Register; 2],
    ) -> Result<(), Fault> {
        let addresses = self.addresses(w, at, mask, access, 1)?;
        self.check_written(w, at, &from, mask)?;
        self.count(mask, access, &addresses, access.bytes);
        let mut before = [0; 32];
        for lane in lanes(mask) {
            self.check((w, lane, at), access, addresses[lane], access.bytes, Use::Atomic)?;
            let [a, b] = from.map(|from| self.lanes(w, from)[lane]);
            let old = self.bytes(access, addresses[lane], access.bytes);
            before[lane] = old;
            let new = match join {
                "cas" => {
                    if old == a & of.mask() {
                        b
                    } else {
                        old
                    }
                }
                "exch" => a,
                "inc" => {
                    if old >= a {
                        0
                    } else {
                        old + 1
                    }
                }
                "dec" => {
                    if old == 0 || old > a {
                        a
                    } else {
                        old - 1
                    }
                }
                _ => {
                    let type_name = format!("{}{}", of.kind, of.bits);
                    let parts =
                        if join == "add" && of.kind == 'f' { vec!["rn", &type_name] } else { vec![&*type_name] };
                    let Some(compute) = crate::arithmetic::compute(join, &parts, Default::default()) else {
                        return Err(self.fault(at, self.thread(w, lane), format!("no atomic {join}")));
                    };
                    let mut result = [0; 32];
                    compute(&mut result, [&[old; 32], &[a; 32], &[0; 32], &[0; 32]]);
                    result[0]
                }
            };
            self.set_bytes(access, addresses[lane], access.bytes, new);
        }
        to.into_iter().for_each(|to| self.write(w, to, mask, &before));
        Ok(())
    }

    /// Counts the sectors of an access to global memory, or the passes of one to shared memory.
    fn count(&mut self, mask: u32, access: &Access, addresses: &Lanes, bytes: u32) {
        if !self.shape.counts || access.space == Space::Param {
            return;
        }
        let mut first: Vec<u64> = lanes(mask).map(|lane| addresses[lane]).collect();
        let is_shared = first.first().is_some_and(|&address| Self::in_shared(access, address).is_some());
        if !is_shared {
            first.sort_unstable();
            first.dedup();
            let used = first.len() as u64 * u64::from(bytes);
            first.iter_mut().for_each(|address| *address /= 32);
            first.dedup();
            self.counts.sectors[0] += first.len() as u64;
            self.counts.sectors[1] += used.div_ceil(32);
            return;
        }
        // 8 bytes a lane are half a warp at once, 16 a quarter.
        let at_once = (128 / bytes.max(4)) as usize;
        for part in first.chunks(at_once) {
            let mut words: Vec<u64> = part.iter().flat_map(|at| at / 4..(at + u64::from(bytes)).div_ceil(4)).collect();
            words.sort_unstable();
            words.dedup();
            let mut banks = [0; 32];
            words.iter().for_each(|word| banks[(word % 32) as usize] += 1);
            self.counts.passes[0] += banks.into_iter().max().unwrap_or(0);
            self.counts.passes[1] += 1;
        }
    }

    /// Makes a join of a warp if all its lanes have come.
    fn join_warp(
        &mut self,
        w: usize,
        at: usize,
        active: u32,
        together: &Together,
        needed: Register,
        to: [Option<Register>; 2],
    ) -> Result<(), Fault> {
        let warp = &self.warps[w];
        let here = lanes(warp.waiting).filter(|&lane| warp.at[lane] as usize == at).map(|lane| 1 << lane).sum::<u32>();
        let masks = self.read(w, at, needed, here)?;
        let Some(first) = lanes(active).next() else { return Ok(()) };
        let mask = masks[first] as u32;
        if let Some(lane) = lanes(here).find(|&lane| masks[lane] as u32 != mask || mask >> lane & 1 == 0) {
            return Err(self.fault(at, self.thread(w, lane), "joins lanes of another mask".to_owned()));
        }
        if mask & !here != 0 {
            return Ok(());
        }
        match together {
            Together::SyncWarp if mask == u32::MAX => self.warps[w].joins += 1,
            // It orders nothing here: no kernel joins a part of a warp.
            Together::SyncWarp | Together::SyncBlock { .. } => (),
            &Together::Shuffle { mode, value, argument, clamp } => {
                self.check_written(w, at, &[value, argument, clamp], mask)?;
                let [value, argument, clamp] = [value, argument, clamp].map(|from| *self.lanes(w, from));
                let (mut result, mut valid) = ([0; 32], [0; 32]);
                for lane in lanes(mask) {
                    let (b, c) = (argument[lane] as usize & 31, clamp[lane] as usize);
                    let segment = c >> 8 & 31;
                    let most = lane & segment | c & 31 & !segment;
                    let least = lane & segment;
                    let (from, is_valid) = match mode {
                        Shuffle::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= most as i32),
                        Shuffle::Down => (lane + b, lane + b <= most),
                        Shuffle::Xor => (lane ^ b, lane ^ b <= most),
                        Shuffle::Index => (least | b & !segment, (least | b & !segment) <= most),
                    };
                    let from = if is_valid { from } else { lane };
                    if mask >> from & 1 == 0 {
                        return Err(self.fault(
                            at,
                            self.thread(w, lane),
                            format!("shuffles from lane {from}, not in the mask"),
                        ));
                    }
                    (result[lane], valid[lane]) = (value[from], is_valid.into());
                }
                self.give(w, mask, to, result, valid);
            }
            &Together::Join { join, value, of } => {
                self.check_written(w, at, &[value], mask)?;
                let value = *self.lanes(w, value);
                let all: Vec<_> = lanes(mask).map(|lane| value[lane] & of.mask()).collect();
                let same = all.iter().all(|one| *one == all[0]);
                let signed = |x: &u64| if of.kind == 's' { *x as i32 as i64 } else { *x as i64 };
                let joined = match join {
                    Join::And => all.iter().fold(u64::MAX, |a, b| a & b) & of.mask(),
                    Join::Or => all.iter().fold(0, |a, b| a | b),
                    Join::Xor => all.iter().fold(0, |a, b| a ^ b),
                    Join::Add => all.iter().sum::<u64>() & of.mask(),
                    Join::Min => all.iter().map(signed).min().unwrap_or(0) as u64 & of.mask(),
                    Join::Max => all.iter().map(signed).max().unwrap_or(0) as u64 & of.mask(),
                    Join::Uniform => same.into(),
                    Join::Ballot => (mask_of(&value) & mask).into(),
                    Join::MatchAll => {
                        if same {
                            mask.into()
                        } else {
                            0
                        }
                    }
                    Join::MatchAny => 0,
                };
                let mut result = [joined; 32];
                if join == Join::MatchAny {
                    let equal = |lane: usize| lanes(mask).filter(|&i| value[i] == value[lane]).map(|i| 1 << i).sum();
                    result = std::array::from_fn(equal);
                }
                self.give(w, mask, to, result, [same.into(); 32]);
            }
        }
        let warp = &mut self.warps[w];
        warp.waiting &= !mask;
        warp.ready |= mask;
        self.put(w, mask, at as u32 + 1);
        Ok(())
    }

    fn give(&mut self, w: usize, mask: u32, [to, other]: [Option<Register>; 2], value: Lanes, predicate: Lanes) {
        to.into_iter().for_each(|to| self.write(w, to, mask, &value));
        other.into_iter().for_each(|to| self.write(w, to, mask, &predicate));
    }

    /// Makes the barrier that all threads wait at; a fault if they wait at different ones, or have ended.
    fn join_block(&mut self) -> Result<(), Fault> {
        let waits = |warp: &Warp| lanes(warp.waiting).next().map(|lane| warp.at[lane]);
        let Some(place) = self.warps.iter().find_map(waits) else { return Ok(()) };
        let at = place as usize;
        let line = self.code.instructions[at].line;
        for (w, lane) in (0..self.warps.len()).flat_map(|w| (0..WARP as usize).map(move |lane| (w, lane))) {
            let warp = &self.warps[w];
            let ended = warp.waiting >> lane & 1 == 0;
            if ended || warp.at[lane] != place {
                let other = if ended { at } else { warp.at[lane] as usize };
                let what = if ended { "has ended" } else { "waits here" };
                let message = format!("{what} while others wait in line {line}");
                return Err(self.fault(other, self.thread(w, lane), message));
            }
        }
        let Kind::Together { together: Together::SyncBlock { join }, to, .. } = &self.code.instructions[at].kind else {
            return Err(self.fault(at, 0, "waits for lanes of another mask".to_owned()));
        };
        if let Some((join, value, negated)) = *join {
            let mut count = 0;
            for w in 0..self.warps.len() {
                let holds = mask_of(self.read(w, at, value, u32::MAX)?);
                count += u64::from((if negated { !holds } else { holds }).count_ones());
            }
            let result = match join {
                Join::Or => u64::from(count > 0),
                Join::And => u64::from(count == u64::from(self.shape.block)),
                _ => count,
            };
            for w in 0..self.warps.len() {
                self.give(w, u32::MAX, *to, [result; 32], [result; 32]);
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
