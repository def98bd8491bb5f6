//! Safetensors files of bounded size, copied together from ranges of blobs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::content::{Content, Step};
use crate::fault::{Code, Fault};

/// Most bytes of tensors in one file.
pub const LARGEST: u64 = 5_000_000_000;

/// A tensor under its new name.
pub struct Piece {
    /// Its name in the export.
    pub name: String,
    /// What it is made of.
    pub content: Content,
    /// What is done to it.
    pub steps: Vec<Step>,
    /// Its shape, when it is another than the steps leave it.
    pub reshaped: Option<Vec<u64>>,
}

impl Piece {
    /// Its shape in the export.
    pub fn shape(&self) -> Vec<u64> {
        let shape = self.content.shape().to_vec();
        let made = self.steps.iter().fold(shape, |shape, step| step.shape(&shape));
        self.reshaped.clone().unwrap_or(made)
    }

    fn bytes(&self) -> u64 {
        self.shape().iter().product::<u64>() * self.content.dtype().bytes()
    }
}

/// Writes the pieces as `model.safetensors`, or as several files and their index.
/// Gives the number of files and the bytes in them.
pub fn write(
    pieces: &[Piece],
    dir: &Path,
    largest: u64,
    progress: &dyn Fn(u64),
) -> Result<(u64, u64), Fault> {
    let mut shards: Vec<&[Piece]> = Vec::new();
    let (mut start, mut held) = (0, 0);
    for (i, piece) in pieces.iter().enumerate() {
        if held > 0 && held + piece.bytes() > largest {
            shards.push(&pieces[start..i]);
            (start, held) = (i, 0);
        }
        held += piece.bytes();
    }
    shards.push(&pieces[start..]);
    if let [only] = shards.as_slice() {
        return Ok((1, shard(only, &dir.join("model.safetensors"), progress)?));
    }
    let mut map = Map::new();
    let mut bytes = 0;
    for (i, pieces) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        bytes += shard(pieces, &dir.join(&name), progress)?;
        map.extend(pieces.iter().map(|piece| (piece.name.clone(), name.clone().into())));
    }
    let total: u64 = pieces.iter().map(Piece::bytes).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": map});
    let index = serde_json::to_vec_pretty(&index)
        .map_err(|error| Fault::new(Code::Internal, format!("the index: {error}")))?;
    let path = dir.join("model.safetensors.index.json");
    std::fs::write(&path, &index).map_err(|error| Fault::io("write", &path, &error))?;
    Ok((shards.len() as u64 + 1, bytes + index.len() as u64))
}

fn shard(pieces: &[Piece], path: &Path, progress: &dyn Fn(u64)) -> Result<u64, Fault> {
    let fault = |error: &std::io::Error| Fault::io("write", path, error);
    let header = header(pieces);
    let file = File::create(path).map_err(|error| fault(&error))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(|error| fault(&error))?;
    out.write_all(&header).map_err(|error| fault(&error))?;
    let mut bytes = 8 + header.len() as u64;
    for piece in pieces {
        let copied = piece
            .content
            .write(&piece.steps, &mut out)
            .map_err(|fault| fault.on_tensor(&piece.name))?;
        if copied != piece.bytes() {
            let what = "its blob became shorter while it was read";
            return Err(Fault::new(Code::CorruptBlob, what).on_tensor(&piece.name));
        }
        bytes += copied;
        progress(copied);
    }
    out.flush().map_err(|error| fault(&error))?;
    Ok(bytes)
}

/// The header of a file: names in the order of the pieces, padded with spaces to 8 bytes.
fn header(pieces: &[Piece]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut at = 0;
    for piece in pieces {
        let (dtype, shape) = (piece.content.dtype(), piece.shape());
        let end = at + piece.bytes();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
        header.insert(piece.name.clone(), entry);
        at = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}
