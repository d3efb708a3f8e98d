//! A reply with what is said about it.

use crate::metadata::{self, MetadataMap};
use crate::wire::metadata::Block;

/// A reply with what is said about it.
#[derive(Debug, Clone)]
pub struct Response<T> {
    message: T,
    /// Boxed, because most replies have none, and all are moved.
    metadata: Option<Box<Block>>,
}

impl<T> Response<T> {
    /// A response with this message.
    pub fn new(message: T) -> Self {
        Self { message, metadata: None }
    }

    /// The message.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to change it.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// What the handler says when its reply begins.
    pub fn metadata(&self) -> &MetadataMap {
        self.metadata.as_ref().map_or(&metadata::EMPTY, |block| &block.headers)
    }

    /// The same, to change it. The client's `max_metadata_size` bounds it, together with the trailers.
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata.get_or_insert_default().headers
    }

    /// What the handler says when its reply ends.
    pub fn trailers(&self) -> &MetadataMap {
        self.metadata.as_ref().map_or(&metadata::EMPTY, |block| &block.trailers)
    }

    /// The same, to change it.
    pub fn trailers_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata.get_or_insert_default().trailers
    }

    /// The message, and what is said besides it.
    pub(crate) fn into_parts(self) -> (T, Option<Box<Block>>) {
        (self.message, self.metadata)
    }

    pub(crate) fn with_block(message: T, metadata: Option<Box<Block>>) -> Self {
        Self { message, metadata }
    }

    /// Another message.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Response<U> {
        Response { message: change(self.message), metadata: self.metadata }
    }
}

impl<T> From<T> for Response<T> {
    fn from(message: T) -> Self {
        Self::new(message)
    }
}
