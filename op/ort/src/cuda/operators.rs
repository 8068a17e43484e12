//! The operators that have a CUDA kernel.

use super::kernel::OnDevice;
use super::{key_value_cache, multi_head_attention, multi_head_cache_attention, static_key_value_cache};
use crate::definition::Definition;
use crate::operators::{KEY_VALUE_CACHE, MULTI_HEAD_ATTENTION, MULTI_HEAD_CACHE_ATTENTION, STATIC_KEY_VALUE_CACHE};

/// Every operator with a CUDA kernel, and what makes the kernel of its nodes.
static OPERATORS: [(&Definition, OnDevice); 4] = [
    (&KEY_VALUE_CACHE, key_value_cache::on_device),
    (&MULTI_HEAD_ATTENTION, multi_head_attention::on_device),
    (&MULTI_HEAD_CACHE_ATTENTION, multi_head_cache_attention::on_device),
    (&STATIC_KEY_VALUE_CACHE, static_key_value_cache::on_device),
];

/// What makes the kernels of an operator's nodes, if it has a CUDA kernel.
pub(super) fn on_device(definition: &'static Definition) -> Option<OnDevice> {
    let mut operators = OPERATORS.iter();
    operators.find(|(known, _)| std::ptr::eq(*known, definition)).map(|&(_, on_device)| on_device)
}

/// Whether the host reads an operator's input of this name: bounds and counts are checked; `kvstarts[B]`, in static
/// batching `start_pos`, is the number of keys, unless these are an input, whose shape tells.
pub(super) fn is_on_host(definition: &'static Definition, input: &str) -> bool {
    match input {
        "max_seqlen" | "max_kvlen" | "decoding_batches" => true,
        "kvstarts" => !std::ptr::eq(definition, &MULTI_HEAD_ATTENTION),
        "start_pos" => std::ptr::eq(definition, &STATIC_KEY_VALUE_CACHE),
        _ => false,
    }
}
