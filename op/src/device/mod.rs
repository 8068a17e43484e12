//! Calls on a device: the checks are those of the host as far as the host can know, and a [`Device`] does the rest.
//!
//! The module `cuda`, of the feature of that name, has an example. Everything here but the device itself is the same
//! for every one.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
mod cuda_rows;
mod device_attention_call;
mod device_call;
mod device_tensor;
mod device_trait;
mod error;
mod key_value_cache;
mod multi_head_attention;
mod multi_head_cache_attention;
mod static_key_value_cache;

pub use device_attention_call::DeviceAttentionCall;
pub use device_call::{DeviceCall, DeviceIndexInputs, DeviceInputs, DeviceOutputs, OutputRows};
pub use device_tensor::{DeviceMut, DeviceRef};
pub use device_trait::{Device, Types};
pub use error::Error;
pub use kvcache_attention::{DeviceAttention, DeviceKeys, DeviceMask, DevicePacked};
pub use kvcache_kernels::{DeviceProblem, DeviceStores, Pages};
pub use multi_head_attention::DeviceAttentionInputs;
pub use multi_head_cache_attention::DeviceCacheAttentionInputs;
pub use static_key_value_cache::StaticDeviceInputs;
