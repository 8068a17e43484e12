//! New files of safetensors near others, whose header and data agree again.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use safetensors::tensor::{TensorInfo, TensorView};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, json};

use crate::text_variation::vary_text;
use kvcache_conformance::random::Entropy;

/// A tensor that can be changed.
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// The file with a value of its metadata changed, or one or two of its tensors: in length, type, name or place, or one
/// more or less. `None` if it is no such file.
pub fn vary_tensors(input: &[u8], random: &mut Entropy) -> Option<Vec<u8>> {
    let file = SafeTensors::deserialize(input).ok()?;
    let (_, header_of) = SafeTensors::read_metadata(input).ok()?;
    let of = |(name, view): (String, TensorView<'_>)| {
        let (dtype, shape, data) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        Tensor { name, dtype, shape, data }
    };
    let mut tensors: Vec<Tensor> = file.tensors().into_iter().map(of).collect();
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut metadata: Option<BTreeMap<_, _>> =
        header_of.metadata().clone().map(|metadata| metadata.into_iter().collect());
    if random.below(3) == 0 {
        vary_value(metadata.as_mut()?, random)?;
    } else {
        for _ in 0..1 + random.below(2) {
            vary_tensor(&mut tensors, random)?;
        }
    }
    tensors.sort_by_key(|tensor| Reverse(tensor.dtype.bitsize()));
    let mut header = Map::new();
    header.extend(metadata.map(|metadata| ("__metadata__".to_owned(), json!(metadata))));
    let misplaced = if random.below(8) == 0 { random.below(tensors.len()) } else { usize::MAX };
    let mut end = 0;
    for (i, Tensor { name, dtype, shape, data }) in tensors.iter().enumerate() {
        let mut data_offsets = (end, end + data.len());
        end = data_offsets.1;
        if i == misplaced {
            // Inside of another one, or with a gap before it.
            let by = 1 + random.below(8);
            let moved = |at: usize| if by > 4 { at.saturating_sub(by - 4) } else { at + by };
            data_offsets = (moved(data_offsets.0), moved(data_offsets.1));
        }
        header.insert(name.clone(), json!(TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets }));
    }
    let mut bytes = serde_json::to_vec(&header).ok()?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let mut file = (bytes.len() as u64).to_le_bytes().to_vec();
    file.append(&mut bytes);
    tensors.iter().for_each(|tensor| file.extend(&tensor.data));
    Some(file)
}

/// Changes a value of the metadata: mostly the longest, which has most rules.
fn vary_value(metadata: &mut BTreeMap<String, String>, random: &mut Entropy) -> Option<()> {
    let any = random.below(metadata.len());
    let value = match random.below(2) {
        0 => metadata.values_mut().max_by_key(|value| value.len()),
        _ => metadata.values_mut().nth(any),
    }?;
    let mut text = value.clone().into_bytes();
    vary_text(&mut text, random);
    *value = String::from_utf8_lossy(&text).into_owned();
    Some(())
}

fn vary_tensor(tensors: &mut Vec<Tensor>, random: &mut Entropy) -> Option<()> {
    if tensors.is_empty() {
        return None;
    }
    let (at, other) = (random.below(tensors.len()), random.below(tensors.len()));
    let other_name = tensors[other].name.clone();
    let tensor = &mut tensors[at];
    let rows = tensor.shape.first().copied().unwrap_or(0);
    let inner: usize = tensor.shape.iter().skip(1).product();
    let row = inner * tensor.dtype.bitsize() / 8;
    if rows * row != tensor.data.len() {
        return None;
    }
    match random.below(8) {
        // A row less, or more.
        0..2 if rows > 0 => {
            let from = random.below(rows) * row;
            tensor.data.drain(from..from + row);
            tensor.shape[0] -= 1;
        }
        2..4 if row > 0 => {
            let from = random.below(rows) * row;
            let copy = tensor.data.get(from..from + row).map_or_else(|| vec![0; row], <[u8]>::to_vec);
            let more = 1 + random.below(3);
            tensor.data.extend(copy.repeat(more));
            tensor.shape[0] += more;
        }
        // Rows that are equal, or in another order.
        4 if rows > 0 => {
            let (from, to) = (random.below(rows) * row, random.below(rows) * row);
            tensor.data.copy_within(from..from + row, to);
        }
        5 => match (random.below(3), tensor.data.len()) {
            (0, _) => tensor.shape.push(1),
            (1, len) if tensor.dtype != Dtype::U8 => (tensor.dtype, tensor.shape) = (Dtype::U8, vec![len]),
            (_, len) if len % 8 == 0 => (tensor.dtype, tensor.shape) = (Dtype::I64, vec![len / 8]),
            _ => return None,
        },
        6 => {
            let data = std::mem::take(&mut tensor.data);
            let (dtype, shape) = (tensor.dtype, std::mem::take(&mut tensor.shape));
            let tensor = &mut tensors[other];
            (tensor.dtype, tensor.shape, tensor.data) = (dtype, shape, data);
            tensors.remove(at);
        }
        _ => {
            // The next one of such names.
            let name = other_name.replace(|c: char| c.is_ascii_digit(), &random.below(4).to_string());
            let (dtype, shape, data) = (tensor.dtype, tensor.shape.clone(), tensor.data.clone());
            if tensors.iter().all(|tensor| tensor.name != name) {
                tensors.push(Tensor { name, dtype, shape, data });
            }
        }
    }
    Some(())
}
