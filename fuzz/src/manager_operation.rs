//! The operations of a script, and what they are done to, as bytes choose them.

use arbitrary::{Arbitrary, Unstructured};
use kvcache_manager::schema::{ElementType, QuantBit};
use kvcache_manager::{CacheSpec, Geometry, KeyForm, MAX_POSITION, Mode, Rope};

/// An operation. Sequences are numbers, which mostly name one that there is.
#[derive(Debug)]
pub enum Operation {
    Create {
        reserve: Count,
        salt: u8,
    },
    Free(u8),
    Fork(u8),
    Keep(u8),
    Remove(Option<u8>, Position, Position),
    /// To a sequence, or to the latest, which is a new one.
    Copy(u8, Option<u8>, Position, Position),
    Add(u8, Position, Position, Delta),
    Divide(u8, Position, Position, Delta),
    Shift(u8, [Position; 3], Option<Position>),
    Defragment(Option<u8>),
    Compact(u8),
    Update {
        fails: Failure,
    },
    /// A step of the tokens of a new sequence.
    Prompt {
        tokens: Tokens,
        end: End,
        fails: Failure,
    },
    Step {
        appends: Vec<Rows>,
        end: End,
        fails: Failure,
    },
    /// All are saved, and loaded into another manager.
    Reload {
        mode: u8,
    },
    /// One of all, or one alone, is saved and loaded beside them.
    Session {
        seq: u8,
        alone: bool,
        fails: Failure,
    },
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(match bytes.int_in_range(0..=39)? {
            0..4 => Self::Create { reserve: bytes.arbitrary()?, salt: bytes.arbitrary()? },
            4..6 => Self::Free(bytes.arbitrary()?),
            6..9 => Self::Fork(bytes.arbitrary()?),
            9 if bytes.ratio(1, 4)? => Self::Keep(bytes.arbitrary()?),
            9..14 => Self::Remove(Self::mostly(bytes)?, bytes.arbitrary()?, bytes.arbitrary()?),
            14..17 => {
                let (src, is_new) = (bytes.arbitrary()?, bytes.ratio(3, 4)?);
                let dst = if is_new { None } else { Some(bytes.arbitrary()?) };
                Self::Copy(src, dst, bytes.arbitrary()?, bytes.arbitrary()?)
            }
            17..20 => Self::Add(bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
            20 => Self::Divide(bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
            21 => Self::Shift(bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
            22 => Self::Defragment(bytes.arbitrary()?),
            23 => Self::Compact(bytes.arbitrary()?),
            24 => Self::Update { fails: bytes.arbitrary()? },
            25 => Self::Reload { mode: bytes.arbitrary()? },
            26 | 27 => Self::Session { seq: bytes.arbitrary()?, alone: bytes.arbitrary()?, fails: bytes.arbitrary()? },
            28..31 => Self::Prompt { tokens: bytes.arbitrary()?, end: bytes.arbitrary()?, fails: bytes.arbitrary()? },
            _ => {
                let appends = (0..bytes.int_in_range(0..=4)?).map(|_| bytes.arbitrary()).collect::<Result<_, _>>()?;
                Self::Step { appends, end: bytes.arbitrary()?, fails: bytes.arbitrary()? }
            }
        })
    }
}

impl Operation {
    /// A sequence, but once in eight times none.
    fn mostly(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Option<u8>> {
        if bytes.ratio(1, 8)? { Ok(None) } else { bytes.arbitrary().map(Some) }
    }
}

/// Rows that a step appends to a sequence.
#[derive(Debug, Arbitrary)]
pub struct Rows {
    pub seq: u8,
    pub tokens: Option<Tokens>,
    pub n: Count,
    pub at: Start,
}

/// Tokens, of which the first are the same in all prompts.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Tokens {
    len: u8,
    prompt: u8,
}

impl Tokens {
    /// The tokens, in a cache of such pages.
    pub fn get(self, page_size: usize) -> Vec<u32> {
        let prompt = u32::from(self.prompt % 4);
        // Some fill pages.
        let len = match self.len {
            0..192 => u32::from(self.len % 24),
            _ => u32::from(self.len % 4 + 1) * page_size as u32,
        };
        (0..len).map(|i| if i < 3 * prompt { 0 } else { prompt }).collect()
    }
}

/// How a step ends.
#[derive(Debug, Arbitrary)]
pub enum End {
    Commit,
    CommitToo,
    Detach,
    DropPlanned,
    DropStep,
    Leak,
}

/// Which of the next calls of the memory fails: mostly none.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Failure(u8);

impl Failure {
    /// How many calls pass before that.
    pub fn get(self) -> Option<usize> {
        self.0.checked_sub(232).map(|after| usize::from(after % 3))
    }
}

/// A position that is mostly small, but also one of those at which numbers end.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Position(i8);

impl Position {
    /// The number.
    pub fn get(self) -> i64 {
        match self.0 {
            i8::MIN => i64::MIN,
            i8::MAX => i64::MAX,
            near @ 116..i8::MAX => MAX_POSITION + 4 - i64::from(i8::MAX - near),
            small => i64::from(small / 2),
        }
    }
}

/// What is added to positions, or divides them.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Delta(i8);

impl Delta {
    /// The number.
    pub fn get(self) -> i64 {
        if (-100..100).contains(&self.0) { (self.0 % 12).into() } else { Position(self.0).get() }
    }
}

/// Where a step's rows begin: behind the last row, mostly.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Start(pub u8);

impl Start {
    /// The position, where it is not the next.
    pub fn get(self, next: i64) -> Option<i64> {
        match self.0 {
            0..200 => None,
            200..240 => Some(next.saturating_add(i64::from(self.0 % 4))),
            _ => Some(Position(self.0 as i8).get()),
        }
    }
}

/// A number of rows or cells: mostly small, else as large as can be.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Count(pub u8);

impl Count {
    /// The number.
    pub fn get(self) -> usize {
        match self.0 {
            u8::MAX => usize::MAX,
            254 => i64::MAX as usize,
            253 => MAX_POSITION as usize,
            small if small < 192 => usize::from(small % 12),
            small => usize::from(small % 64),
        }
    }
}

/// What a manager manages.
#[derive(Debug, Clone, Arbitrary)]
pub struct Managed {
    mode: u8,
    max_t: u8,
    max_pages: Option<u8>,
    raw: bool,
    no_rope: bool,
    int4: bool,
    sharing: bool,
    window: Option<(u8, u8, u8)>,
    threshold: Option<u8>,
}

impl Managed {
    /// The specification, if it can be one.
    pub fn spec(&self) -> Option<CacheSpec> {
        let mode = match self.mode % 8 {
            0 | 1 => Mode::Runs,
            2 | 3 => Mode::Cells,
            pages => Mode::Paged { page_size: [1, 2, 3, 5][usize::from(pages) - 4] },
        };
        // Small ones are often full.
        let max_t = 1 + usize::from(if self.mode & 0x40 == 0 { self.max_t } else { self.max_t % 24 });
        let mut builder = CacheSpec::builder(Geometry { num_layer: 1, num_heads: 1, head_dim: 4, max_t }).mode(mode);
        if self.int4 {
            builder = builder.quantized(QuantBit::Four, 4, ElementType::Float16);
        }
        if !self.no_rope || !self.raw {
            builder = builder.rope(Rope::neox(4, 1e4));
        }
        if let Some((window, sink, slack)) = self.window.filter(|(window, ..)| window % 2 == 0) {
            builder = builder.window((window % 32).into()).sink((sink % 8).into()).slack((slack % 8).into());
        }
        if let Some(threshold) = self.threshold {
            builder = builder.defrag_threshold(f64::from(threshold) / 256.0);
        }
        if let Some(max_pages) = self.max_pages {
            builder = builder.max_pages(max_pages.into());
        }
        let key_form = if self.raw { KeyForm::Raw } else { KeyForm::Roped };
        builder.key_form(key_form).prefix_sharing(self.sharing).build().ok()
    }

    /// One of another mode, with as much room as there can be.
    pub fn other(&self, mode: u8) -> Self {
        Self { mode: mode & 7, max_t: u8::MAX, max_pages: None, ..self.clone() }
    }
}
