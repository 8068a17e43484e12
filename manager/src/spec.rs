//! The specification of a cache and its management: dimensions, types, layout and mode of a cache, validated once, and
//! the figures that follow.

use kvcache_kernels::{CacheRows, Rope};
use kvcache_schema::{Attributes, CacheDims, CacheLayout, CacheMode, ElementType, QuantBit, STATIC_SCALES};

/// The dimensions of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Attention layers that share the cache (L).
    pub num_layer: usize,
    /// Cache heads (H).
    pub num_heads: usize,
    /// Elements of a head (Dh).
    pub head_dim: usize,
    /// Slots (MaxT).
    pub max_t: usize,
}

/// How sequences get their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Pages of `page_size` slots, anywhere in the cache: `cache_mode` 1. Sequences share pages, and copy them when
    /// they write.
    Paged {
        /// Slots of a page.
        page_size: usize,
    },
    /// A run of neighboring slots for each sequence, with a reserve: `cache_mode` 0. Sequences share nothing.
    Runs,
    /// Cells anywhere in the cache, of which attention sees those up to the last busy one: `cache_mode` 0, with an
    /// entry that writes and one that is the view. Sequences share cells, and copy them when they edit their positions.
    Cells,
}

/// What the stored keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// Keys are stored after rotary embedding: a row that moves to another position is rotated by an update.
    Roped,
    /// Keys are stored before rotary embedding, which the graph applies to what the operator returns, by
    /// `key_positions`: positions are metadata.
    PreRope,
}

impl KeyForm {
    /// The earlier name of [`KeyForm::PreRope`].
    #[doc(hidden)]
    #[expect(non_upper_case_globals, reason = "it was a variant")]
    pub const Raw: Self = Self::PreRope;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) len: Option<usize>,
    pub(crate) sink: usize,
    pub(crate) slack: usize,
    pub(crate) keep_rows: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quant {
    pub(crate) bit: QuantBit,
    pub(crate) group: usize,
    pub(crate) scale_type: ElementType,
}

/// The settings of a specification, before its figures follow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) geometry: Geometry,
    pub(crate) layout: CacheLayout,
    pub(crate) cache_type: ElementType,
    pub(crate) quant: Option<Quant>,
    pub(crate) quant_rotation: bool,
    pub(crate) mode: Mode,
    pub(crate) max_pages: Option<usize>,
    pub(crate) prefix_sharing: bool,
    pub(crate) fingerprint: String,
    pub(crate) computed_by: String,
    pub(crate) key_form: KeyForm,
    pub(crate) rope: Option<Rope>,
    pub(crate) window: Window,
    pub(crate) pad: usize,
    pub(crate) defrag_threshold: Option<f64>,
}

/// A checked description of a cache and of the way it is managed. Made by [`CacheSpec::builder`].
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSpec {
    pub(crate) settings: Settings,
    pub(crate) shift_limit: Option<u32>,
    pub(crate) rows: CacheRows,
}

/// Slots of a page; where there are cells, 1.
pub(crate) fn page_size(mode: Mode) -> usize {
    match mode {
        Mode::Paged { page_size } => page_size,
        Mode::Runs | Mode::Cells => 1,
    }
}

/// Getters of settings: a name, a type and a path each.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $of:ty = $($field:ident).+;)*) => {
        impl CacheSpec {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> $of {
                    self.$($field).+
                }
            )*
        }
    };
}

settings! {
    /// The dimensions.
    geometry: Geometry = settings.geometry;
    /// How sequences get their slots.
    mode: Mode = settings.mode;
    /// The order of the axes of `cache` and `scale`.
    layout: CacheLayout = settings.layout;
    /// The type of `cache`.
    cache_type: ElementType = settings.cache_type;
    /// The columns of `cachestarts`, where they are fixed.
    max_pages: Option<usize> = settings.max_pages;
    /// What the stored keys are.
    key_form: KeyForm = settings.key_form;
    /// The number of last positions that attention sees, if it does not see all.
    window: Option<usize> = settings.window.len;
    /// The first rows of a sequence, which a window leaves.
    sink: usize = settings.window.sink;
    /// The number of positions that a window keeps beside its own.
    slack: usize = settings.window.slack;
    /// Whether rows that a window has passed stay, as rows without a page of their own.
    keep_rows: bool = settings.window.keep_rows;
    /// The multiple that the number of cells that a step sees is rounded up to.
    pad: usize = settings.pad;
    /// The part of free slots past which a commit queues a defragmentation.
    defrag_threshold: Option<f64> = settings.defrag_threshold;
    /// The number of updates that may rotate the rows of a sequence.
    shift_limit: Option<u32> = shift_limit;
}

impl CacheSpec {
    /// The width of a quantized cache's elements, how many neighbors share a scale, and the type of scales; none of
    /// these where scales are static.
    pub fn quant(&self) -> Option<(QuantBit, usize, ElementType)> {
        self.settings.quant.map(|quant| (quant.bit, quant.group, quant.scale_type))
    }

    /// Whether keys are multiplied by a Hadamard matrix before they are quantized (`quant_rotation`).
    pub fn has_quant_rotation(&self) -> bool {
        self.settings.quant_rotation
    }

    /// Slots of a page; in the modes `runs` and `cells`, 1.
    pub fn page_size(&self) -> usize {
        page_size(self.settings.mode)
    }

    /// Pages, or cells, of the cache; slots after the last whole page are not used.
    pub fn num_pages(&self) -> usize {
        self.settings.geometry.max_t / self.page_size()
    }

    /// Whether sequences whose tokens begin alike share pages: never in the modes `runs` and `cells`.
    pub fn prefix_sharing(&self) -> bool {
        self.settings.prefix_sharing && matches!(self.settings.mode, Mode::Paged { .. })
    }

    /// The rotary embedding of keys.
    pub fn rope(&self) -> Option<&Rope> {
        self.settings.rope.as_ref()
    }

    /// Why stored keys cannot be rotated, if they cannot.
    pub(crate) fn not_shiftable(&self) -> Option<&'static str> {
        match self.settings.rope {
            None => Some("keys are stored rotated, and no rope is given"),
            Some(_) if self.settings.cache_type == ElementType::Int8 && self.settings.quant.is_none() => {
                Some("keys are int8 without scales")
            }
            Some(_) if self.rows.has_static_scales() => Some("keys are float8e4m3fn with static scales"),
            Some(_) => None,
        }
    }

    /// What makes keys and values of the same tokens differ.
    pub fn fingerprint(&self) -> &str {
        &self.settings.fingerprint
    }

    /// What computes keys and values, as far as it decides their bits.
    pub fn computed_by(&self) -> &str {
        &self.settings.computed_by
    }

    /// Where the bytes of slots lie, in this layout and these types.
    pub fn rows(&self) -> &CacheRows {
        &self.rows
    }

    /// The shape of `cache`, in elements: for int4 too the last axis is `head_dim`.
    pub fn cache_shape(&self) -> [usize; 5] {
        self.settings.layout.shape(self.dims(self.settings.geometry.head_dim))
    }

    /// The shape of `scale`, if the cache is quantized and its scales are not static.
    pub fn scale_shape(&self) -> Option<[usize; 5]> {
        self.settings
            .quant
            .map(|quant| self.settings.layout.shape(self.dims(self.settings.geometry.head_dim / quant.group)))
    }

    /// The bytes of `cache` and `scale`.
    pub fn nbytes(&self) -> usize {
        self.rows.cache_len() + self.rows.scale_len()
    }

    /// The bytes of a slot: of all layers, keys and values, and scales.
    pub fn bytes_per_token(&self) -> usize {
        self.rows.row_len()
    }

    /// The slots of a cache with these dimensions and types that fits in `nbytes` bytes.
    pub fn max_tokens(&self, nbytes: usize) -> usize {
        nbytes / self.bytes_per_token()
    }

    /// The operator's attributes for this cache: those of layer 0, without repeated heads.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = Attributes {
            num_layer: self.settings.geometry.num_layer as i64,
            cache_layout: self.settings.layout.code(),
            ..Attributes::default()
        };
        if let Mode::Paged { page_size } = self.settings.mode {
            (attributes.cache_mode, attributes.page_size) = (CacheMode::Paged.code(), page_size as i64);
        }
        if let Some(quant) = self.settings.quant {
            attributes.quant_bit = quant.bit.code();
            attributes.quant_type = quant.bit.quant_type();
            attributes.quant_group = quant.group as i64;
        }
        if self.rows.has_static_scales() {
            (attributes.quant_bit, attributes.quant_type) = (QuantBit::Float8.code(), STATIC_SCALES);
        }
        attributes.quant_rotation = self.has_quant_rotation().into();
        attributes
    }

    fn dims(&self, inner: usize) -> CacheDims {
        let Geometry { num_layer, num_heads, max_t, .. } = self.settings.geometry;
        CacheDims { max_t, num_layer, num_heads, inner }
    }
}
