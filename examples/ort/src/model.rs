//! A model folder: the graph, its tokenizer, and what the graph's metadata say of the cache; and ONNX
//! Runtime, opened at run time, with the operators linked into this program.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kvcache_manager::op::TensorMut;
use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{CacheSettings, CacheSpec, Geometry, HostMemory, MaskSpec, Mode, Rope, RopeStyle, Step, op};
use libloading::Library;
use ort::memory::Allocator;
use ort::session::{Session, SessionInputValue};
use ort::sys::{ORT_API_VERSION, OrtApiBase};
use ort::value::{DynTensor, Tensor};
use serde::Deserialize;
use tokenizers::Tokenizer;

/// A session, and what a program must know of its model.
pub struct Model {
    session: Session,
    masked: bool,
    about: About,
    pub tokenizer: Tokenizer,
}

/// The metadata.
#[derive(Deserialize)]
struct About {
    config: Config,
    cache: Cache,
    stops: Vec<u32>,
    fingerprint: String,
    layer_groups: Option<LayerGroups>,
}

#[derive(Deserialize)]
struct LayerGroups {
    windows: Vec<Option<usize>>,
}

#[derive(Deserialize)]
struct Config {
    context_length: usize,
    vocab_size: usize,
    inv_freq: Vec<f64>,
    #[serde(default)]
    interleaved: bool,
    window: Option<usize>,
}

/// Fields of `kvcache_ops.CacheSpec`.
#[derive(Deserialize)]
struct Cache {
    num_kv_heads: usize,
    head_dim: usize,
    num_layers: usize,
    cache_layout: i64,
    cache_mode: i64,
    page_size: usize,
    quant_bit: i64,
    quant_group: usize,
    cache_dtype: String,
    scale_dtype: Option<String>,
}

impl Model {
    /// The model of a session, whose folder has its tokenizer.
    pub fn new(session: Session, folder: &Path) -> Result<Self> {
        let about = session.metadata()?.custom("kvcache_ops.model").context("no model of kvcache_ops.models")?;
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(|error| anyhow!(error))?;
        let masked = session.inputs().iter().any(|input| input.name() == "attn_mask");
        Ok(Self { session, masked, about: serde_json::from_str(&about)?, tokenizer })
    }

    /// Whether this token ends an answer.
    pub fn stops(&self, token: u32) -> bool {
        self.about.stops.contains(&token)
    }

    /// The most tokens of a sequence.
    pub fn context_length(&self) -> usize {
        self.about.config.context_length
    }

    /// The manager's description of a cache with that many slots.
    pub fn spec(&self, max_tokens: usize) -> Result<CacheSpec> {
        let About { config, cache, fingerprint, .. } = &self.about;
        if self.about.layer_groups.as_ref().is_some_and(|groups| groups.windows.len() > 1) {
            bail!("layers have several caches, expected one: build the model with --no-layer-groups");
        }
        if cache.cache_mode != 1 {
            bail!("cache_mode is {}, expected 1: build the model with a paged cache", cache.cache_mode);
        }
        let geometry = Geometry {
            num_layer: cache.num_layers,
            num_heads: cache.num_kv_heads,
            head_dim: cache.head_dim,
            max_t: max_tokens,
        };
        let style = if config.interleaved { RopeStyle::Gptj } else { RopeStyle::Neox };
        let rope = || Rope::with_frequencies(style, config.inv_freq.clone());
        let scale_type = cache.scale_dtype.as_deref().map(element).transpose()?;
        let quantized = QuantBit::from_codes(cache.quant_bit, 0).and(scale_type);
        let settings = CacheSettings {
            geometry,
            layout: CacheLayout::from_code(cache.cache_layout).context("an unknown cache_layout")?,
            cache_type: element(&cache.cache_dtype)?,
            quant: quantized.map(|scale_type| (cache.quant_group, scale_type)),
            mode: Mode::Paged { page_size: cache.page_size },
            fingerprint: fingerprint.clone(),
            rope: (!config.inv_freq.is_empty()).then(rope),
            window: config.window,
            ..CacheSettings::default()
        };
        Ok(settings.check()?)
    }

    /// The likeliest tokens after these tokens of a step, by their places in the step.
    pub fn likeliest(&mut self, step: &Step<'_>, rows: &[usize], memory: &mut Memory) -> Result<Vec<u32>> {
        let (pages, one) = (step.cachestarts(), |number: i64| vec![number]);
        let values: Vec<i64> = pages.iter().copied().collect();
        let rows: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
        let mut inputs: Vec<(&str, SessionInputValue<'_>)> =
            vec![("cachestarts", Tensor::from_array((pages.shape(), values))?.into())];
        for (name, values) in [
            ("token_ids", step.token_ids().to_vec()),
            ("positions", step.positions().to_vec()),
            ("seqstarts", step.seqstarts().to_vec()),
            ("kvstarts", step.kvstarts().to_vec()),
            ("start_pos", step.start_pos().to_vec()),
            ("decoding_batches", one(step.decoding_batches())),
            ("max_seqlen", one(step.max_seqlen())),
            ("max_kvlen", one(step.max_kvlen())),
            ("logit_rows", rows),
        ] {
            inputs.push((name, Tensor::from_array(([values.len()], values))?.into()));
        }
        if self.masked {
            let spec = MaskSpec::default();
            let [_, tokens, width] = step.mask_shape(&spec);
            let mut mask = vec![0.0_f32; tokens * width];
            step.mask_into(&spec, &mut mask)?;
            inputs.push(("attn_mask", Tensor::from_array(([tokens, width], mask))?.into()));
        }
        inputs.push(("cache", memory.cache.view_mut().into()));
        inputs.extend(memory.scale.as_mut().map(|scale| ("scale", scale.view_mut().into())));
        let outputs = self.session.run(inputs)?;
        let (_, logits) = outputs["logits"].try_extract_tensor::<f32>()?;
        let likeliest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as u32;
        Ok(logits.chunks_exact(self.about.config.vocab_size).map(likeliest).collect())
    }
}

/// The memory of a cache, as ONNX Runtime's tensors.
pub struct Memory {
    cache: DynTensor,
    scale: Option<DynTensor>,
}

impl Memory {
    /// Zeros.
    pub fn new(spec: &CacheSpec) -> Result<Self> {
        let scale = spec.scale_shape().zip(spec.quant).map(|(shape, (_, scale_type))| zeros(scale_type, shape));
        Ok(Self { cache: zeros(spec.cache_type, spec.cache_shape())?, scale: scale.transpose()? })
    }

    /// The memory as the manager writes it: where it copies pages and rotates keys.
    pub fn host(&mut self, spec: &CacheSpec) -> Result<HostMemory<'_>> {
        // SAFETY: row-major tensors of this type and shape, made so and set to zeros by `zeros`, borrowed exclusively.
        let tensor = |value: &mut DynTensor, element, shape: [usize; 5]| unsafe {
            TensorMut::from_raw_parts(element, shape, value.data_ptr_mut().cast())
        };
        let cache = tensor(&mut self.cache, spec.cache_type, spec.cache_shape());
        let scale = self.scale.as_mut().zip(spec.quant).zip(spec.scale_shape());
        let scale = scale.map(|((value, (_, scale_type)), shape)| tensor(value, scale_type, shape));
        Ok(HostMemory::new(spec, cache, scale, &op::Serial)?)
    }
}

fn zeros(element: ElementType, shape: [usize; 5]) -> Result<DynTensor> {
    let number = shape.iter().product();
    let bytes = element.bytes(number).context("the cache is too large")?;
    let element = kvcache_ort::runtime_type(element);
    let mut value = DynTensor::new(&Allocator::default(), element, shape.map(|dim| dim as i64))?;
    // SAFETY: the value has just been made of this type and shape, and so has as many bytes.
    unsafe { value.data_ptr_mut().cast::<u8>().write_bytes(0, bytes) };
    Ok(value)
}

/// A type by its name.
fn element(name: &str) -> Result<ElementType> {
    ElementType::ALL.into_iter().find(|element| element.name() == name).with_context(|| format!("a cache of {name:?}"))
}

/// A session of `model`. A program makes one.
pub fn session(onnxruntime: &Path, model: &Path) -> Result<Session> {
    // SAFETY: the initializers of ONNX Runtime have no preconditions.
    let library = unsafe { Library::new(onnxruntime) }.with_context(|| onnxruntime.display().to_string())?;
    let library = Box::leak(Box::new(library)); // what it gives lives as long as the program
    // SAFETY: the runtime's header declares this function so; it has no preconditions and never gives null.
    let base = unsafe { &*library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase")?() };
    // SAFETY: `GetApi` takes any number, and gives null for a version that the runtime does not have.
    let api = unsafe { (base.GetApi)(ORT_API_VERSION).as_ref() }.context("ONNX Runtime is older than 1.20")?;
    ort::set_api(api.clone());

    let mut builder = Session::builder(&ort::init().with_telemetry(false).build()?)?;
    // SAFETY: `base` is of the runtime whose interface `ort` was given.
    unsafe { kvcache_ort::register(&mut builder, base) }?;
    Ok(builder.commit_from_file(model)?)
}
