//! Problems as HTTP answers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::protocol::problem::{Code, Problem};

/// The error type of every handler.
pub struct RefusedRequest(pub Problem);

impl<E: Into<Problem>> From<E> for RefusedRequest {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for RefusedRequest {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if self.0.code == Code::Internal {
            tracing::error!(message = self.0.message, "internal problem");
        }
        let mut response = (status, Json(self.0)).into_response();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

pub type ApiResult<T> = Result<T, RefusedRequest>;
