"""Each field of a request to the pinned engine has a rule here, or is known to do no harm."""

import inspect
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from transformers import PreTrainedTokenizerBase, ProcessorMixin
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest as TextRequest

from support.bodies import problem

from serve.request.completion import HARMLESS, CompletionRequest


@pytest.mark.parametrize("request_type", [ChatCompletionRequest, TextRequest])
def test_no_field_of_a_request_is_unknown(request_type: type[ChatCompletionRequest] | type[TextRequest]) -> None:
    assert request_type.model_fields.keys() - HARMLESS - {*CompletionRequest.__struct_fields__} == set()


@pytest.mark.parametrize("renders", [PreTrainedTokenizerBase, ProcessorMixin])
def test_no_argument_of_the_function_that_renders_templates_is_the_clients(renders: type) -> None:
    names = inspect.signature(renders.apply_chat_template).parameters.keys() - {"self", "kwargs"}  # type: ignore[attr-defined]
    for name in names:
        assert problem({"model": "m", "chat_template_kwargs": {name: True}}).code == "field_not_allowed"
