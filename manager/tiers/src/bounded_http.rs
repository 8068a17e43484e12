//! HTTP for object stores, which believes no answer: bodies are no longer than a block, or else not read.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kvcache_manager::{BlockError, LongestBlock};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, Result};

/// Errors and credentials may be as long, where blocks are shorter.
const PAGE: u64 = 1 << 20;

/// Makes clients that read no answer longer than the longest block.
#[derive(Debug, Clone)]
pub(crate) struct Bounded(pub(crate) Arc<LongestBlock>);

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(BoundedClient { client, longest: self.0.clone() }))
    }
}

#[derive(Debug)]
struct BoundedClient {
    client: HttpClient,
    longest: Arc<LongestBlock>,
}

/// The server does not do what it was asked, and will not do it if it is asked again.
#[derive(Debug)]
pub(crate) struct NotImplemented;

impl fmt::Display for NotImplemented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server answers 501 Not Implemented")
    }
}

impl std::error::Error for NotImplemented {}

/// An error after which nobody asks again.
fn last(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

#[async_trait]
impl HttpService for BoundedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let has_body = request.method().as_str() != "HEAD";
        let (answer, body) = self.client.execute(request).await?.into_parts();
        if answer.status.as_u16() == 501 {
            return Err(last(NotImplemented));
        }
        let most = self.longest.nbytes().max(PAGE);
        let declared =
            answer.headers.get("content-length").and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        // Whoever reads it makes room for what is declared.
        if has_body && declared.is_some_and(|length| length > most) {
            return Err(last(BlockError::Length));
        }
        let body = Limited::new(body, usize::try_from(most).unwrap_or(usize::MAX)).map_err(|error| {
            match error.downcast::<HttpError>() {
                Ok(error) => *error,
                Err(error) if error.is::<LengthLimitError>() => last(BlockError::Length),
                Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
            }
        });
        Ok(HttpResponse::from_parts(answer, HttpResponseBody::new(body)))
    }
}
