//! The operators that have a CUDA kernel.

use super::kernel::OnDevice;
use super::{key_value_cache, static_key_value_cache};
use crate::definition::Definition;
use crate::operators::{KEY_VALUE_CACHE, STATIC_KEY_VALUE_CACHE};

/// Every operator with a CUDA kernel, and what makes the kernel of its nodes.
static OPERATORS: [(&Definition, OnDevice); 2] =
    [(&KEY_VALUE_CACHE, key_value_cache::on_device), (&STATIC_KEY_VALUE_CACHE, static_key_value_cache::on_device)];

/// What makes the kernels of an operator's nodes, if it has a CUDA kernel.
pub(super) fn on_device(definition: &'static Definition) -> Option<OnDevice> {
    let mut operators = OPERATORS.iter();
    operators.find(|(known, _)| std::ptr::eq(*known, definition)).map(|&(_, on_device)| on_device)
}

/// Whether the host reads an operator's input of this name: `kvstarts[B]`, in static batching `start_pos`, is in the
/// outputs' shape, and the bounds are checked.
pub(super) fn is_on_host(definition: &'static Definition, input: &str) -> bool {
    matches!(input, "kvstarts" | "max_seqlen" | "max_kvlen")
        || input == "start_pos" && std::ptr::eq(definition, &STATIC_KEY_VALUE_CACHE)
}
