//! Formats of typed keys and values.

/// A format in which values of type `T` can be stored. Equal keys must have equal bytes.
pub trait Codec<T: ?Sized> {
    /// Appends the bytes of `value` to `into`.
    ///
    /// # Errors
    /// The reason why `value` cannot be encoded.
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String>;
}

/// A format from which values of type `T` can be read.
pub trait Decode<T> {
    /// Decodes `bytes`.
    ///
    /// # Errors
    /// The reason why `bytes` cannot be decoded.
    fn decode(bytes: &[u8]) -> Result<T, String>;
}

/// The postcard format, for types with serde's `Serialize` and `DeserializeOwned`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Postcard;

/// The bytes of values in memory, for types with zerocopy's `IntoBytes`, `Immutable` and `FromBytes`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Plain;

#[cfg(feature = "serde")]
impl<T: serde::Serialize + ?Sized> Codec<T> for Postcard {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        postcard::to_io(value, into).map(drop).map_err(|error| error.to_string())
    }
}

#[cfg(feature = "serde")]
impl<T: serde::de::DeserializeOwned> Decode<T> for Postcard {
    fn decode(bytes: &[u8]) -> Result<T, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(feature = "zerocopy")]
impl<T: zerocopy::IntoBytes + zerocopy::Immutable + ?Sized> Codec<T> for Plain {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        into.extend_from_slice(value.as_bytes());
        Ok(())
    }
}

#[cfg(feature = "zerocopy")]
impl<T: zerocopy::FromBytes> Decode<T> for Plain {
    fn decode(bytes: &[u8]) -> Result<T, String> {
        T::read_from_bytes(bytes).map_err(|_| format!("{} bytes instead of {}", bytes.len(), size_of::<T>()))
    }
}
