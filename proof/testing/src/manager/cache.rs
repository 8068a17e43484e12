//! A random cache, and what it is to a manager and to the model.

use kvcache_conformance::random::Unstructured;
use kvcache_manager::schema::ElementType;
use kvcache_manager::{CacheSettings, CacheSpec, Geometry, KeyForm, Mode, Rope, ShiftLimit};

use crate::manager::model::{Rules, Window};

#[derive(Debug, Clone)]
pub struct Cache {
    pub mode: Mode,
    pub max_t: usize,
    pub max_pages: Option<usize>,
    pub prefix_sharing: bool,
    pub window: Option<Window>,
    /// The rows that the window passes stay, without their pages.
    pub keep_rows: bool,
    pub has_rope: bool,
    pub raw: bool,
    pub shift_limit: Option<u32>,
    pub pad: usize,
    pub defrag_threshold: Option<f64>,
}

/// A value, with this probability.
pub(super) fn some<T>(
    entropy: &mut Unstructured,
    times: usize,
    of: usize,
    draw: impl FnOnce(&mut Unstructured) -> T,
) -> Option<T> {
    (entropy.below(of) < times).then(|| draw(entropy))
}

pub(super) fn modes(entropy: &mut Unstructured) -> Mode {
    match entropy.below(7) {
        0..3 => Mode::Paged { page_size: entropy.pick(&[1, 2, 3, 16]) },
        3 | 4 => Mode::Runs,
        _ => Mode::Cells,
    }
}

impl Cache {
    pub fn draw(entropy: &mut Unstructured) -> Self {
        let (mode, size) = (modes(entropy), entropy.within(4, 23));
        let max_t = match mode {
            // The last slots are no whole page.
            Mode::Paged { page_size } => size * page_size + page_size / 2,
            // Enough for fragmentation to be counted, sometimes.
            _ => 8 * size,
        };
        let paged = matches!(mode, Mode::Paged { .. });
        let cache = Self {
            mode,
            max_t,
            max_pages: some(entropy, 1, 5, |entropy| entropy.within(3, 9).min(max_t)).filter(|_| paged),
            prefix_sharing: paged && entropy.below(10) < 7,
            window: some(entropy, 3, 10, |entropy| {
                let width = entropy.within(1, 11);
                Window { width, sink: entropy.below(5), slack: entropy.below(4).max(2_usize.saturating_sub(width)) }
            }),
            keep_rows: false,
            has_rope: !entropy.one_in(10),
            raw: entropy.one_in(5),
            shift_limit: entropy.pick(&[None, Some(2)]),
            pad: entropy.pick(&[4, 32]),
            defrag_threshold: some(entropy, 1, 5, |entropy| entropy.pick(&[0.0, 0.3])),
        };
        match cache.window {
            Some(window) if paged && entropy.one_in(2) => cache.keeping_rows(window),
            _ => cache,
        }
    }

    fn keeping_rows(self, window: Window) -> Self {
        Self { window: Some(Window { sink: 0, ..window }), keep_rows: true, ..self }
    }

    /// A small cache of pages, whose prompts share prefixes.
    pub fn draw_of_prefixes(entropy: &mut Unstructured) -> Self {
        let page_size = entropy.pick(&[2, 4]);
        Self {
            mode: Mode::Paged { page_size },
            max_t: page_size * entropy.within(5, 11),
            max_pages: None,
            prefix_sharing: true,
            window: None,
            keep_rows: false,
            ..Self::draw(entropy)
        }
    }

    /// The same, with a window that keeps rows, and a page more.
    pub fn draw_of_kept_rows(entropy: &mut Unstructured) -> Self {
        let window = Window { width: entropy.within(2, 6), sink: 0, slack: entropy.below(4) };
        let cache = Self::draw_of_prefixes(entropy);
        Self { max_t: cache.max_t + cache.page_size(), ..cache }.keeping_rows(window)
    }
}

impl Cache {
    pub fn page_size(&self) -> usize {
        if let Mode::Paged { page_size } = self.mode { page_size } else { 1 }
    }

    /// The slots of the page of rows that a window has passed, where these stay: the first ones.
    pub fn null_slots(&self) -> usize {
        if self.keep_rows { self.page_size() } else { 0 }
    }

    pub fn paged(&self) -> bool {
        matches!(self.mode, Mode::Paged { .. })
    }

    /// A row has 16 bytes, a [`Tag`](crate::manager::memory::Tag).
    pub fn spec(&self) -> CacheSpec {
        let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t: self.max_t };
        let window = self.window;
        let settings = CacheSettings {
            geometry,
            cache_type: ElementType::Float32,
            mode: self.mode,
            max_pages: self.max_pages,
            prefix_sharing: self.prefix_sharing,
            key_form: if self.raw { KeyForm::PreRope } else { KeyForm::Roped },
            rope: self.has_rope.then(|| Rope::neox(2, 1e4)),
            window: window.map(|window| window.width),
            sink: window.map_or(0, |window| window.sink),
            slack: window.map_or(0, |window| window.slack),
            keep_rows: self.keep_rows,
            pad: self.pad,
            defrag_threshold: self.defrag_threshold,
            shift_limit: self.shift_limit.map_or(ShiftLimit::Unlimited, ShiftLimit::Updates),
            ..CacheSettings::default()
        };
        settings.check().unwrap()
    }

    pub fn rules(&self) -> Rules {
        Rules {
            page_size: self.page_size(),
            window: self.window,
            keep_rows: self.keep_rows,
            raw: self.raw,
            has_rope: self.has_rope,
            shift_limit: self.shift_limit,
        }
    }
}
