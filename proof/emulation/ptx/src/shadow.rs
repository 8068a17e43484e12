//! Who has accessed memory, and which accesses are ordered: by a barrier of the block, or by one of the warp.

use std::collections::HashMap;

/// An access: the interval between barriers in which it was made (each block's are its own), the warp's interval in
/// that one, and the thread. 0 is none.
type Stamp = u64;

/// When and by whom an access is made.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    pub(crate) interval: u32,
    /// The block's first interval.
    pub(crate) block_began: u32,
    /// Joins of the warp since that interval began.
    pub(crate) joins: u32,
    pub(crate) thread: u32,
}

impl Now {
    fn stamp(self) -> Stamp {
        u64::from(self.interval) << 32 | u64::from(self.joins & 0xf_ffff) << 12 | u64::from(self.thread)
    }

    /// Whether an access of this launch happens before this one.
    fn follows(self, past: Stamp) -> bool {
        let (interval, thread) = ((past >> 32) as u32, past as u32 & 0xfff);
        past == 0
            || interval >= self.block_began
                && (interval < self.interval
                    || thread == self.thread
                    || thread / 32 == self.thread / 32 && (past as u32 >> 12) < self.joins)
    }
}

/// What is wrong with an access: the thread of the access that it conflicts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    Uninitialized,
    WithWrite(u32),
    WithRead(u32),
    /// Some thread reads it through the read-only cache.
    WithReadOnly,
}

/// Accesses to a word, or to a byte of it.
#[derive(Clone, Copy, Default)]
struct Shadow {
    write: Stamp,
    /// The last read since that write, and the last by another thread, of another warp if there is one.
    read: Stamp,
    other: Stamp,
    /// The interval of the first read since that write.
    first_read: u32,
    /// Whether it is read through the read-only cache.
    read_only: bool,
}

fn thread(stamp: Stamp) -> u32 {
    stamp as u32 & 0xfff
}

impl Shadow {
    fn read(&mut self, now: Now) -> Result<(), Conflict> {
        if !now.follows(self.write) {
            return Err(Conflict::WithWrite(thread(self.write)));
        }
        let stamp = now.stamp();
        if self.read >> 32 != stamp >> 32 {
            self.other = 0;
        } else if thread(self.read) != now.thread {
            let warp = now.thread / 32;
            if thread(self.read) / 32 != warp || self.other == 0 || thread(self.other) / 32 == warp {
                self.other = self.read;
            }
        }
        self.read = stamp;
        if self.first_read == 0 {
            self.first_read = now.interval;
        }
        Ok(())
    }

    fn read_only(&mut self) -> Result<(), Conflict> {
        self.read_only = true;
        if self.write == 0 { Ok(()) } else { Err(Conflict::WithWrite(thread(self.write))) }
    }

    fn write(&mut self, now: Now) -> Result<(), Conflict> {
        if self.read_only {
            return Err(Conflict::WithReadOnly);
        }
        if !now.follows(self.write) {
            return Err(Conflict::WithWrite(thread(self.write)));
        }
        let elsewhere = self.first_read != 0 && self.first_read < now.block_began;
        if elsewhere || !now.follows(self.read) || !now.follows(self.other) {
            let read = if now.follows(self.read) && self.other != 0 { self.other } else { self.read };
            return Err(Conflict::WithRead(thread(read)));
        }
        *self = Self { write: now.stamp(), ..Self::default() };
        Ok(())
    }
}

/// Shadows of neighboring words; of bytes, where a part of a word has been accessed.
struct Words {
    words: Vec<Shadow>,
    bytes: Vec<Option<Box<[Shadow; 4]>>>,
}

impl Words {
    fn new(count: usize) -> Self {
        Self { words: vec![Shadow::default(); count], bytes: Vec::new() }
    }

    /// Calls `access` on the shadows of some bytes, which are in one word or whole words.
    fn each(
        &mut self,
        at: usize,
        bytes: u32,
        mut access: impl FnMut(&mut Shadow) -> Result<(), Conflict>,
    ) -> Result<(), Conflict> {
        if bytes < 4 && self.bytes.is_empty() {
            self.bytes.resize_with(self.words.len(), || None);
        }
        let word = at / 4;
        if bytes < 4 {
            let whole = self.words[word];
            let parts = self.bytes[word].get_or_insert_with(|| Box::new([whole; 4]));
            return parts[at % 4..][..bytes as usize].iter_mut().try_for_each(access);
        }
        for word in word..word + bytes as usize / 4 {
            match self.bytes.get_mut(word).and_then(Option::as_mut) {
                Some(parts) => parts.iter_mut().try_for_each(&mut access)?,
                None => access(&mut self.words[word])?,
            }
        }
        Ok(())
    }
}

/// The shadow of a block's shared memory, which the next block uses again.
pub(crate) struct SharedShadow(Words);

impl SharedShadow {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Words::new(bytes.div_ceil(4)))
    }

    pub(crate) fn read(&mut self, at: usize, bytes: u32, now: Now) -> Result<(), Conflict> {
        self.0.each(at, bytes, |shadow| {
            // What an earlier block has written is not there.
            if ((shadow.write >> 32) as u32) < now.block_began {
                return Err(Conflict::Uninitialized);
            }
            shadow.read(now)
        })
    }

    pub(crate) fn write(&mut self, at: usize, bytes: u32, now: Now) -> Result<(), Conflict> {
        self.0.each(at, bytes, |shadow| {
            if ((shadow.write >> 32) as u32) < now.block_began {
                *shadow = Shadow::default();
            }
            shadow.write(now)
        })
    }
}

const PAGE: u64 = 4096;

/// The shadow of the global memory that a launch accesses.
#[derive(Default)]
pub(crate) struct GlobalShadow {
    pages: Vec<Words>,
    numbers: HashMap<u64, usize>,
    /// The page of the last access.
    last: Option<(u64, usize)>,
}

impl GlobalShadow {
    fn each(
        &mut self,
        address: u64,
        bytes: u32,
        access: impl FnMut(&mut Shadow) -> Result<(), Conflict>,
    ) -> Result<(), Conflict> {
        let page = address / PAGE;
        let number = match self.last {
            Some((last, number)) if last == page => number,
            _ => {
                let pages = &mut self.pages;
                let number = *self.numbers.entry(page).or_insert_with(|| {
                    pages.push(Words::new(PAGE as usize / 4));
                    pages.len() - 1
                });
                self.last = Some((page, number));
                number
            }
        };
        self.pages[number].each((address % PAGE) as usize, bytes, access)
    }

    pub(crate) fn read(&mut self, address: u64, bytes: u32, now: Now, read_only: bool) -> Result<(), Conflict> {
        match read_only {
            true => self.each(address, bytes, Shadow::read_only),
            false => self.each(address, bytes, |shadow| shadow.read(now)),
        }
    }

    pub(crate) fn write(&mut self, address: u64, bytes: u32, now: Now) -> Result<(), Conflict> {
        self.each(address, bytes, |shadow| shadow.write(now))
    }
}
