//! A cache on the host and its twin on a device.

use std::error::Error;
use std::sync::Arc;

use kvcache_conformance::random::Unstructured;
use kvcache_manager::op::cuda::cudarc::driver::{CudaSlice, CudaStream};
use kvcache_manager::op::cuda::{DeviceMut, Staging, primary_context};
use kvcache_manager::op::kernels::write_floats;
use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{CacheSettings, CacheSpec, DeviceMemory, Geometry, Mode};
use kvcache_testing::manager::memory::Memory;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The types of a cache: that of `cache`, and quantization.
pub type Types = (ElementType, Option<(QuantBit, usize, ElementType)>);

pub fn spec(layout: CacheLayout, (cache, quant): Types, geometry: Geometry) -> Result<CacheSpec> {
    let settings = CacheSettings { geometry, layout, mode: Mode::Paged { page_size: 4 }, ..CacheSettings::default() };
    Ok(match quant {
        // With rotated keys in every other layout.
        Some((bit, group, scale)) => CacheSettings {
            cache_type: bit.element(),
            quant: Some((group, scale)),
            quant_rotation: layout.code() % 2 == 1,
            ..settings
        },
        None => CacheSettings { cache_type: cache, ..settings },
    }
    .check()?)
}

/// A cache of random numbers on the host, and the same on the first GPU.
pub struct Twins {
    pub host: Memory,
    pub stream: Arc<CudaStream>,
    pub staging: Staging,
    cache: CudaSlice<u8>,
    scale: Option<CudaSlice<u8>>,
}

impl Twins {
    /// `staged` rows are on their way at once.
    pub fn new(spec: &CacheSpec, staged: usize, entropy: &mut Unstructured) -> Result<Self> {
        let mut host = Memory::new(spec);
        fill(spec.cache_type, host.cache.bytes_mut(), entropy);
        if let (Some(scale), Some((_, t3))) = (&mut host.scale, spec.quant) {
            fill(t3, scale.bytes_mut(), entropy);
        }
        let context = primary_context(0)?;
        // One that can be captured.
        let stream = context.new_stream()?;
        let cache = stream.clone_htod(host.cache.bytes())?;
        let scale = host.scale.as_ref().map(|scale| stream.clone_htod(scale.bytes())).transpose()?;
        let staging = Staging::new(&context, staged * spec.bytes_per_token())?;
        Ok(Self { host, stream, staging, cache, scale })
    }

    pub fn on_device<T>(&mut self, act: impl FnOnce(&mut DeviceMemory<'_>) -> T) -> Result<T> {
        let Self { host: Memory { spec, .. }, stream, staging, cache, scale } = self;
        let cache = DeviceMut::from_bytes(spec.cache_type, spec.cache_shape(), cache, stream);
        let scale = scale.as_mut().zip(spec.quant.zip(spec.scale_shape()));
        let scale = scale.map(|(scale, ((_, t3), shape))| DeviceMut::from_bytes(t3, shape, scale, stream));
        Ok(act(&mut DeviceMemory::new(spec, cache, scale, stream, staging)?))
    }

    /// Fails unless the two have the same bytes.
    pub fn agree(&self, what: &str) -> Result<()> {
        let same = self.stream.clone_dtoh(&self.cache)? == self.host.cache.bytes()
            && match (&self.scale, &self.host.scale) {
                (Some(scale), Some(host)) => self.stream.clone_dtoh(scale)? == host.bytes(),
                _ => true,
            };
        if same { Ok(()) } else { Err(format!("{what}: {:?}", self.host.spec).into()) }
    }
}

/// Numbers of a type; codes are any bytes, but for a float8's NaN.
pub fn fill(element: ElementType, bytes: &mut [u8], entropy: &mut Unstructured) {
    if element.is_float() {
        let values: Vec<f32> =
            bytes.chunks(element.align()).map(|_| entropy.below(4001) as f32 / 500.0 - 4.0).collect();
        write_floats(element, &values, bytes);
    } else {
        bytes.iter_mut().for_each(|byte| *byte = entropy.below(256) as u8);
        if element == ElementType::Float8E4M3Fn {
            bytes.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte = 0);
        }
    }
}
