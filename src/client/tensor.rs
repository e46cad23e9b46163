//! A tensor on a mount.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use zerocopy::IntoBytes;

use crate::attributes::{self, Place};
use crate::dtype::{Dtype, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
use crate::memory_map::{Mapping, check_type, zeros};
use crate::requests::{self, Consent, Evict};

/// The element types to which a mount casts.
const CASTS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];
/// The directory with the forms of a collection.
const FORMS: &str = ".as";

/// The largest and the root mean square difference between the elements that were last encoded and those that are read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QuantizationError {
    /// The largest.
    pub max: f64,
    /// The root mean square.
    pub rms: f64,
}

/// A tensor: a file whose bytes are its elements, little-endian and row-major, or a `.npy` file.
///
/// It has a path and no open file: each call opens the file again, and fails with [`ErrorKind::Changed`] if that is a
/// tensor of another type or shape by then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    path: PathBuf,
    layout: Layout,
}

impl Tensor {
    /// Opens a tensor: `COLLECTION/.tensors/NAME`, its plain name, a file of its own with the attributes `dtype` and
    /// `shape`, such a file of a form, or a `.npy` file.
    ///
    /// A copy that has the attributes, such as one by `cp -a`, and a `.npy` file open outside of a mount too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::NotATensor`] for a container, a directory or another file;
    /// [`ErrorKind::Invalid`] for attributes that do not agree with the file; [`ErrorKind::Unsupported`] for element
    /// types and `.npy` files that this crate does not read.
    pub fn open(path: impl AsRef<Path>) -> Result<Tensor> {
        let path = path.as_ref();
        let layout = Layout::of(Place::of(path))?;
        Ok(Tensor { path: path.to_owned(), layout })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.layout.dtype
    }

    /// The number of elements along each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape.dimensions()
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.layout.shape.elements()
    }

    /// Bytes of all elements.
    pub fn nbytes(&self) -> usize {
        self.layout.nbytes
    }

    /// The tier that holds the tensor now: `exact`, `q8`, ..., `absent`, or `mixed`; `q8 -> q5 37%` while it moves.
    ///
    /// # Errors
    /// [`ErrorKind::NoAttribute`] for files of forms, and outside of a mount.
    pub fn tier(&self) -> Result<String> {
        self.attribute("tier")
    }

    /// The error of the encoding, 0 for an exact tensor. `None` if elements are lost for good.
    ///
    /// # Errors
    /// [`ErrorKind::NoAttribute`] for files of forms, `.npy` files, and outside of a mount.
    pub fn error(&self) -> Result<Option<QuantizationError>> {
        let text = self.attribute("error")?;
        if text == "absent" {
            return Ok(None);
        }
        let (max, rms) = text.split_once(' ').unwrap_or_default();
        let number = |text: &str, key: &str| text.strip_prefix(key)?.parse().ok();
        let parsed = number(max, "max=").zip(number(rms, "rms="));
        let parsed = parsed.map(|(max, rms)| QuantizationError { max, rms });
        parsed.map(Some).ok_or_else(|| self.failure(ErrorKind::Invalid, format!("{text:?} is not an error")))
    }

    /// An attribute, by its name behind `user.tierfs.`; the manual lists them.
    ///
    /// # Errors
    /// [`ErrorKind::NoAttribute`] if the file has none of this name.
    pub fn attribute(&self, name: &str) -> Result<String> {
        let found = Place::of(&self.path).text(name)?;
        found.ok_or_else(|| self.failure(ErrorKind::NoAttribute, format!("it has no attribute {name}")))
    }

    /// The same tensor as `f32`, `f16` or `bf16`; the mount computes the elements when they are read. A tensor that is
    /// not a float keeps its type.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for other types and for files of forms; [`ErrorKind::NotMounted`] for a file that is not
    /// in a collection on a mount; those of [`Tensor::open`].
    pub fn cast(&self, dtype: Dtype) -> Result<Tensor> {
        if !CASTS.contains(&dtype) {
            let text = format!("a mount casts to f32, f16 and bf16, not to {dtype}");
            return Err(self.failure(ErrorKind::Unsupported, text));
        }
        Tensor::open(self.path_in_form(dtype.name())?)
    }

    fn path_in_form(&self, form: &str) -> Result<PathBuf> {
        let failed = |error| Place::of(&self.path).failed(error);
        let real = self.path.canonicalize().map_err(failed)?;
        // The directory of a collection has one with forms, and no directory below it has.
        let has_forms = |path: &&Path| path.join(FORMS).is_dir();
        let Some(collection) = real.ancestors().skip(1).find(has_forms) else {
            return Err(self.failure(ErrorKind::NotMounted, "it is not a file of a collection on a mount"));
        };
        let below = real.strip_prefix(collection).unwrap_or(&real);
        if below.starts_with(FORMS) {
            return Err(
                self.failure(ErrorKind::Unsupported, "it is a file of a form, and forms have no forms")
            );
        }
        attributes::check_mounted(Place::of(&self.path))?;
        Ok(collection.join(FORMS).join(form).join(below))
    }

    /// Maps the tensor. The use of a page whose bytes cannot be read ends the process by SIGBUS, as with every mapped
    /// file; [`Tensor::read`] fails instead.
    ///
    /// # Safety
    /// The elements must not change while the mapping exists, because slices of Rust do not, and the compiler cannot see
    /// other programs: nobody may write to the file or cut it, and no move to another tier may round its elements. A
    /// [pinned](Tensor::pin) tensor does not move. Another file that takes the name is no change: the mapping stays that
    /// of the file that was opened.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`]; errors of the system.
    ///
    /// ```no_run
    /// let weight = tierfs_client::Tensor::open("/mnt/acme/llama/.tensors/lm_head.weight")?;
    /// // SAFETY: the tensor is pinned, and no program writes to it.
    /// let mapping = unsafe { weight.map()? };
    /// let row: &[half::bf16] = mapping.row(17)?;
    /// # Ok::<(), tierfs_client::Error>(())
    /// ```
    pub unsafe fn map(&self) -> Result<Mapping> {
        let file = self.open_again()?;
        // SAFETY: the caller's contract is that of the function.
        unsafe { Mapping::new(&self.path, &file, self.layout.clone()) }
    }

    /// Reads all elements.
    ///
    /// # Errors
    /// [`ErrorKind::WrongType`] if they have another type; [`ErrorKind::Changed`]; [`ErrorKind::Absent`] and
    /// [`ErrorKind::Corrupt`] with the reason that the mount gives; [`ErrorKind::OutOfMemory`].
    ///
    /// ```no_run
    /// let bias = tierfs_client::Tensor::open("/mnt/acme/bert/.tensors/pooler.dense.bias")?;
    /// let values: Vec<f32> = bias.read()?;
    /// println!("{} {:?} {}: {}", bias.dtype(), bias.shape(), bias.tier()?, values[0]);
    /// # Ok::<(), tierfs_client::Error>(())
    /// ```
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        check_type::<T>(&self.path, self.dtype())?;
        let mut elements = zeros(&self.path, self.nbytes() / size_of::<T>())?;
        self.read_into(&mut elements)?;
        Ok(elements)
    }

    /// Reads all elements into a slice of as many.
    ///
    /// # Errors
    /// Those of [`Tensor::read`], and [`ErrorKind::WrongLength`]. After an error the slice has any values.
    pub fn read_into<T: Element>(&self, elements: &mut [T]) -> Result<()> {
        check_type::<T>(&self.path, self.dtype())?;
        self.read_bytes_into(elements.as_mut_bytes())
    }

    /// Reads the bytes of all elements of any type: little-endian, row-major.
    ///
    /// # Errors
    /// Those of [`Tensor::read_into`], without [`ErrorKind::WrongType`].
    pub fn read_bytes_into(&self, bytes: &mut [u8]) -> Result<()> {
        if bytes.len() != self.nbytes() {
            let text = format!("a buffer of {} bytes for {} bytes of elements", bytes.len(), self.nbytes());
            return Err(self.failure(ErrorKind::WrongLength, text));
        }
        let file = self.open_again()?;
        read_exact_at(Place { path: &self.path, file: Some(&file) }, &file, bytes, self.layout.data_start)
    }

    /// Moves the tensor to a tier: `exact`, `q8`, `q7`, `q5`, `q3` or `q3x`. Returns at the end of the move.
    ///
    /// # Errors
    /// Those of [`set_tier`](crate::set_tier).
    pub fn set_tier(&self, tier: &str, consent: Consent) -> Result<()> {
        requests::set_tier(&self.path, tier, consent)
    }

    /// Keeps the tensor contiguous, with its present bytes and in its tier.
    ///
    /// # Errors
    /// Those of [`pin`](crate::pin).
    pub fn pin(&self) -> Result<()> {
        requests::pin(&self.path)
    }

    /// Unpins the tensor, and removes its copy.
    ///
    /// # Errors
    /// Those of [`unpin`](crate::unpin).
    pub fn unpin(&self) -> Result<()> {
        requests::unpin(&self.path)
    }

    /// Drops cached pages, or stored bytes.
    ///
    /// # Errors
    /// Those of [`evict`](crate::evict).
    pub fn evict(&self, evict: Evict) -> Result<()> {
        requests::evict(&self.path, evict)
    }

    /// The file, which still has the elements that this tensor describes.
    fn open_again(&self) -> Result<File> {
        let changed = |text: String| self.failure(ErrorKind::Changed, format!("{text}; open it again"));
        let opened = attributes::open(&self.path)?;
        let file = opened.ok_or_else(|| changed("it is not a regular file now".to_owned()))?;
        match Layout::of(Place { path: &self.path, file: Some(&file) }) {
            Ok(layout) if layout == self.layout => Ok(file),
            Ok(layout) => {
                let shape = layout.shape.dimensions();
                Err(changed(format!("it is a tensor of {} and of the shape {shape:?} now", layout.dtype)))
            }
            Err(error) => match error.kind() {
                ErrorKind::NotATensor | ErrorKind::Invalid | ErrorKind::Unsupported => {
                    Err(changed("it has changed".to_owned()))
                }
                _ => Err(error),
            },
        }
    }

    fn failure(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, &self.path, text)
    }
}

impl AsRef<Path> for Tensor {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Fills a buffer from an offset of an open file.
pub(crate) fn read_exact_at(place: Place<'_>, file: &File, bytes: &mut [u8], start: u64) -> Result<()> {
    match file.read_exact_at(bytes, start) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Error::new(ErrorKind::Changed, place.path, "it ended early; open it again"))
        }
        Err(error) => Err(place.failed(error)),
    }
}
