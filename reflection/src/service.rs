//! The answers of `grpc.reflection.v1.ServerReflection`: one for each request, in their order.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use verbwire::{Code, Request, Response, Status, Streaming};

use crate::index::{Files, Index};
use crate::pb::server_reflection_request::MessageRequest as Asked;
use crate::pb::server_reflection_response::MessageResponse as Answer;
use crate::pb::server_reflection_server::ServerReflection;
use crate::pb::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

/// Answers from the descriptors that a [`Builder`](crate::Builder) was given.
#[derive(Debug)]
pub struct ReflectionService(Arc<Index>);

impl ReflectionService {
    pub(crate) fn new(index: Index) -> Self {
        Self(Arc::new(index))
    }
}

impl ServerReflection for ReflectionService {
    type ServerReflectionInfoStream = Reflected;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Reflected>, Status> {
        let index = Arc::clone(&self.0);
        Ok(Response::new(Reflected { requests: request.into_inner(), index }))
    }
}

/// The answers to a stream of requests. A request is taken when its answer is, so none waits here.
#[derive(Debug)]
pub struct Reflected {
    requests: Streaming<ServerReflectionRequest>,
    index: Arc<Index>,
}

impl Stream for Reflected {
    type Item = Result<ServerReflectionResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let request = std::task::ready!(Pin::new(&mut self.requests).poll_next(cx));
        Poll::Ready(request.map(|request| request.map(|request| respond(&self.index, request))))
    }
}

fn respond(index: &Index, request: ServerReflectionRequest) -> ServerReflectionResponse {
    let answered = request.message_request.as_ref().map_or_else(
        || Err((Code::InvalidArgument, "the request asks for nothing".to_owned())),
        |asked| answer(index, asked).map_err(|missing| (Code::NotFound, missing)),
    );
    // A request that cannot be answered does not end the stream.
    let answer = answered.unwrap_or_else(|(code, error_message)| {
        Answer::ErrorResponse(ErrorResponse { error_code: code.into(), error_message })
    });
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(answer),
    }
}

/// The answer, or what is not there.
fn answer(index: &Index, asked: &Asked) -> Result<Answer, String> {
    match asked {
        Asked::FileByFilename(name) => {
            index.file(name).map(files).ok_or_else(|| format!("no file {name:?}"))
        }
        Asked::FileContainingSymbol(name) => {
            index.file_of_symbol(name).map(files).ok_or_else(|| format!("no symbol {name:?}"))
        }
        Asked::FileContainingExtension(asked) => {
            let (extended, number) = (&asked.containing_type, asked.extension_number);
            let found = index.file_of_extension(extended, number).map(files);
            found.ok_or_else(|| format!("no extension {number} of {extended:?}"))
        }
        Asked::AllExtensionNumbersOfType(name) => {
            let numbers = index.extension_numbers(name);
            let extension_number = numbers.ok_or_else(|| format!("no type {name:?}"))?;
            let base_type_name = name.clone();
            Ok(Answer::AllExtensionNumbersResponse(ExtensionNumberResponse {
                base_type_name,
                extension_number,
            }))
        }
        Asked::ListServices(_) => {
            let names = index.services().iter().cloned();
            let service = names.map(|name| ServiceResponse { name }).collect();
            Ok(Answer::ListServicesResponse(ListServiceResponse { service }))
        }
    }
}

fn files(file_descriptor_proto: Files) -> Answer {
    Answer::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
}
