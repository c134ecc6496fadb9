from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmbedBatchRequest(_message.Message):
    __slots__ = ("model", "texts", "prompt_name", "normalize", "truncate", "dimensions", "dtype", "input_type", "truncate_left", "instruction")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_LEFT_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    prompt_name: str
    normalize: bool
    truncate: bool
    dimensions: int
    dtype: str
    input_type: str
    truncate_left: bool
    instruction: str
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., prompt_name: _Optional[str] = ..., normalize: bool = ..., truncate: bool = ..., dimensions: _Optional[int] = ..., dtype: _Optional[str] = ..., input_type: _Optional[str] = ..., truncate_left: bool = ..., instruction: _Optional[str] = ...) -> None: ...

class EmbedBatchResponse(_message.Message):
    __slots__ = ("model", "fingerprint", "vectors", "dtype", "dims", "tokens", "truncated")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    model: str
    fingerprint: str
    vectors: bytes
    dtype: str
    dims: int
    tokens: int
    truncated: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., vectors: _Optional[bytes] = ..., dtype: _Optional[str] = ..., dims: _Optional[int] = ..., tokens: _Optional[int] = ..., truncated: _Optional[_Iterable[int]] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("model", "query", "passages", "truncate", "raw_scores", "top_n", "return_text")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RAW_SCORES_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    RETURN_TEXT_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    passages: _containers.RepeatedScalarFieldContainer[str]
    truncate: bool
    raw_scores: bool
    top_n: int
    return_text: bool
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., passages: _Optional[_Iterable[str]] = ..., truncate: bool = ..., raw_scores: bool = ..., top_n: _Optional[int] = ..., return_text: bool = ...) -> None: ...

class Ranked(_message.Message):
    __slots__ = ("index", "score", "text")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    text: str
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("model", "results", "tokens", "truncated", "query_truncated")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    QUERY_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    model: str
    results: _containers.RepeatedCompositeFieldContainer[Ranked]
    tokens: int
    truncated: _containers.RepeatedScalarFieldContainer[int]
    query_truncated: bool
    def __init__(self, model: _Optional[str] = ..., results: _Optional[_Iterable[_Union[Ranked, _Mapping]]] = ..., tokens: _Optional[int] = ..., truncated: _Optional[_Iterable[int]] = ..., query_truncated: bool = ...) -> None: ...

class CreateIndexRequest(_message.Message):
    __slots__ = ("name", "encoder", "metric", "kind", "dims", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    encoder: str
    metric: str
    kind: str
    dims: int
    options: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., encoder: _Optional[str] = ..., metric: _Optional[str] = ..., kind: _Optional[str] = ..., dims: _Optional[int] = ..., options: _Optional[_Mapping[str, int]] = ...) -> None: ...

class IndexInfo(_message.Message):
    __slots__ = ("name", "encoder", "fingerprint", "dims", "kind", "metric", "documents", "passages", "options", "searched_as", "trains_at", "tombstones", "prompts", "prompts_outdated")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SEARCHED_AS_FIELD_NUMBER: _ClassVar[int]
    TRAINS_AT_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_OUTDATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    options: _containers.ScalarMap[str, int]
    searched_as: str
    trains_at: int
    tombstones: int
    prompts: IndexPrompts
    prompts_outdated: bool
    def __init__(self, name: _Optional[str] = ..., encoder: _Optional[str] = ..., fingerprint: _Optional[str] = ..., dims: _Optional[int] = ..., kind: _Optional[str] = ..., metric: _Optional[str] = ..., documents: _Optional[int] = ..., passages: _Optional[int] = ..., options: _Optional[_Mapping[str, int]] = ..., searched_as: _Optional[str] = ..., trains_at: _Optional[int] = ..., tombstones: _Optional[int] = ..., prompts: _Optional[_Union[IndexPrompts, _Mapping]] = ..., prompts_outdated: bool = ...) -> None: ...

class IndexPrompts(_message.Message):
    __slots__ = ("query", "passage")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PASSAGE_FIELD_NUMBER: _ClassVar[int]
    query: str
    passage: str
    def __init__(self, query: _Optional[str] = ..., passage: _Optional[str] = ...) -> None: ...

class ListIndexesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListIndexesResponse(_message.Message):
    __slots__ = ("indexes",)
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    indexes: _containers.RepeatedCompositeFieldContainer[IndexInfo]
    def __init__(self, indexes: _Optional[_Iterable[_Union[IndexInfo, _Mapping]]] = ...) -> None: ...

class GetIndexRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropIndexRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropIndexResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Document(_message.Message):
    __slots__ = ("id", "text", "metadata")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    metadata: _struct_pb2.Struct
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class UpsertRequest(_message.Message):
    __slots__ = ("index", "documents", "vectors", "fingerprint")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    index: str
    documents: _containers.RepeatedCompositeFieldContainer[Document]
    vectors: bytes
    fingerprint: str
    def __init__(self, index: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[Document, _Mapping]]] = ..., vectors: _Optional[bytes] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class UpsertResponse(_message.Message):
    __slots__ = ("documents", "passages", "tokens")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    documents: int
    passages: int
    tokens: int
    def __init__(self, documents: _Optional[int] = ..., passages: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("index", "ids", "filter")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    index: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    filter: _struct_pb2.Struct
    def __init__(self, index: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("index", "query", "vector", "fingerprint", "top_k", "mode", "filter")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    index: str
    query: str
    vector: bytes
    fingerprint: str
    top_k: int
    mode: str
    filter: _struct_pb2.Struct
    def __init__(self, index: _Optional[str] = ..., query: _Optional[str] = ..., vector: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., top_k: _Optional[int] = ..., mode: _Optional[str] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Hit(_message.Message):
    __slots__ = ("id", "document_id", "score", "text", "start", "end", "metadata", "heading")
    ID_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    HEADING_FIELD_NUMBER: _ClassVar[int]
    id: str
    document_id: str
    score: float
    text: str
    start: int
    end: int
    metadata: _struct_pb2.Struct
    heading: str
    def __init__(self, id: _Optional[str] = ..., document_id: _Optional[str] = ..., score: _Optional[float] = ..., text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., heading: _Optional[str] = ...) -> None: ...

class QueryResponse(_message.Message):
    __slots__ = ("hits",)
    HITS_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[Hit]
    def __init__(self, hits: _Optional[_Iterable[_Union[Hit, _Mapping]]] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("index", "filter")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    index: str
    filter: _struct_pb2.Struct
    def __init__(self, index: _Optional[str] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("documents", "passages")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    documents: int
    passages: int
    def __init__(self, documents: _Optional[int] = ..., passages: _Optional[int] = ...) -> None: ...

class GetDocumentsRequest(_message.Message):
    __slots__ = ("index", "ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    index: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetDocumentsResponse(_message.Message):
    __slots__ = ("documents",)
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedCompositeFieldContainer[Document]
    def __init__(self, documents: _Optional[_Iterable[_Union[Document, _Mapping]]] = ...) -> None: ...

class ScrollRequest(_message.Message):
    __slots__ = ("index", "filter", "limit", "after", "with_text", "with_metadata", "with_vectors")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WITH_TEXT_FIELD_NUMBER: _ClassVar[int]
    WITH_METADATA_FIELD_NUMBER: _ClassVar[int]
    WITH_VECTORS_FIELD_NUMBER: _ClassVar[int]
    index: str
    filter: _struct_pb2.Struct
    limit: int
    after: str
    with_text: bool
    with_metadata: bool
    with_vectors: bool
    def __init__(self, index: _Optional[str] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ..., with_text: bool = ..., with_metadata: bool = ..., with_vectors: bool = ...) -> None: ...

class StoredPassage(_message.Message):
    __slots__ = ("id", "start", "end", "vector")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    start: int
    end: int
    vector: bytes
    def __init__(self, id: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., vector: _Optional[bytes] = ...) -> None: ...

class StoredDocument(_message.Message):
    __slots__ = ("id", "text", "metadata", "passages")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    metadata: _struct_pb2.Struct
    passages: _containers.RepeatedCompositeFieldContainer[StoredPassage]
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., passages: _Optional[_Iterable[_Union[StoredPassage, _Mapping]]] = ...) -> None: ...

class ScrollResponse(_message.Message):
    __slots__ = ("documents", "next")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedCompositeFieldContainer[StoredDocument]
    next: str
    def __init__(self, documents: _Optional[_Iterable[_Union[StoredDocument, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class CreateAlias(_message.Message):
    __slots__ = ("alias", "index")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    alias: str
    index: str
    def __init__(self, alias: _Optional[str] = ..., index: _Optional[str] = ...) -> None: ...

class DeleteAlias(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: str
    def __init__(self, alias: _Optional[str] = ...) -> None: ...

class RenameAlias(_message.Message):
    __slots__ = ("alias", "to")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    alias: str
    to: str
    def __init__(self, alias: _Optional[str] = ..., to: _Optional[str] = ...) -> None: ...

class AliasAction(_message.Message):
    __slots__ = ("create_alias", "delete_alias", "rename_alias")
    CREATE_ALIAS_FIELD_NUMBER: _ClassVar[int]
    DELETE_ALIAS_FIELD_NUMBER: _ClassVar[int]
    RENAME_ALIAS_FIELD_NUMBER: _ClassVar[int]
    create_alias: CreateAlias
    delete_alias: DeleteAlias
    rename_alias: RenameAlias
    def __init__(self, create_alias: _Optional[_Union[CreateAlias, _Mapping]] = ..., delete_alias: _Optional[_Union[DeleteAlias, _Mapping]] = ..., rename_alias: _Optional[_Union[RenameAlias, _Mapping]] = ...) -> None: ...

class UpdateAliasesRequest(_message.Message):
    __slots__ = ("actions",)
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[AliasAction]
    def __init__(self, actions: _Optional[_Iterable[_Union[AliasAction, _Mapping]]] = ...) -> None: ...

class ListAliasesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Alias(_message.Message):
    __slots__ = ("alias", "target", "index")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    alias: str
    target: str
    index: str
    def __init__(self, alias: _Optional[str] = ..., target: _Optional[str] = ..., index: _Optional[str] = ...) -> None: ...

class AliasesResponse(_message.Message):
    __slots__ = ("aliases",)
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    aliases: _containers.RepeatedCompositeFieldContainer[Alias]
    def __init__(self, aliases: _Optional[_Iterable[_Union[Alias, _Mapping]]] = ...) -> None: ...

class CreateSnapshotRequest(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: str
    def __init__(self, index: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("id", "index", "created", "encoder", "fingerprint", "dims", "kind", "metric", "documents", "passages", "bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    index: str
    created: float
    encoder: str
    fingerprint: str
    dims: int
    kind: str
    metric: str
    documents: int
    passages: int
    bytes: int
    def __init__(self, id: _Optional[str] = ..., index: _Optional[str] = ..., created: _Optional[float] = ..., encoder: _Optional[str] = ..., fingerprint: _Optional[str] = ..., dims: _Optional[int] = ..., kind: _Optional[str] = ..., metric: _Optional[str] = ..., documents: _Optional[int] = ..., passages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: str
    def __init__(self, index: _Optional[str] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots", "refused")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    refused: _containers.ScalarMap[str, str]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ..., refused: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DeleteSnapshotRequest(_message.Message):
    __slots__ = ("index", "snapshot")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    index: str
    snapshot: str
    def __init__(self, index: _Optional[str] = ..., snapshot: _Optional[str] = ...) -> None: ...

class DeleteSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreSnapshotRequest(_message.Message):
    __slots__ = ("index", "snapshot", "into")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    INTO_FIELD_NUMBER: _ClassVar[int]
    index: str
    snapshot: str
    into: str
    def __init__(self, index: _Optional[str] = ..., snapshot: _Optional[str] = ..., into: _Optional[str] = ...) -> None: ...

class RebuildIndexRequest(_message.Message):
    __slots__ = ("index", "encoder", "metric", "kind", "options")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    index: str
    encoder: str
    metric: str
    kind: str
    options: KindOptions
    def __init__(self, index: _Optional[str] = ..., encoder: _Optional[str] = ..., metric: _Optional[str] = ..., kind: _Optional[str] = ..., options: _Optional[_Union[KindOptions, _Mapping]] = ...) -> None: ...

class KindOptions(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, int]
    def __init__(self, values: _Optional[_Mapping[str, int]] = ...) -> None: ...

class GetRebuildRequest(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: str
    def __init__(self, index: _Optional[str] = ...) -> None: ...

class Rebuild(_message.Message):
    __slots__ = ("index", "encoder", "fingerprint", "kind", "metric", "documents", "began", "state", "pending", "ended", "reason", "overlap")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    index: str
    encoder: str
    fingerprint: str
    kind: str
    metric: str
    documents: int
    began: float
    state: str
    pending: int
    ended: float
    reason: str
    overlap: float
    def __init__(self, index: _Optional[str] = ..., encoder: _Optional[str] = ..., fingerprint: _Optional[str] = ..., kind: _Optional[str] = ..., metric: _Optional[str] = ..., documents: _Optional[int] = ..., began: _Optional[float] = ..., state: _Optional[str] = ..., pending: _Optional[int] = ..., ended: _Optional[float] = ..., reason: _Optional[str] = ..., overlap: _Optional[float] = ...) -> None: ...

class CancelRebuildRequest(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: str
    def __init__(self, index: _Optional[str] = ...) -> None: ...

class CancelRebuildResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("model", "query", "documents", "index", "top_k", "top_n", "compression_mode", "max_tokens", "search_mode", "context", "ratio", "max_context_vectors", "target_ms", "compress_timeout_ms", "min_relevance", "temperature", "top_p", "seed", "stop", "logprobs", "filter")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEARCH_MODE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_VECTORS_FIELD_NUMBER: _ClassVar[int]
    TARGET_MS_FIELD_NUMBER: _ClassVar[int]
    COMPRESS_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    documents: _containers.RepeatedCompositeFieldContainer[Document]
    index: str
    top_k: int
    top_n: int
    compression_mode: str
    max_tokens: int
    search_mode: str
    context: str
    ratio: int
    max_context_vectors: int
    target_ms: float
    compress_timeout_ms: float
    min_relevance: float
    temperature: float
    top_p: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    logprobs: int
    filter: _struct_pb2.Struct
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[Document, _Mapping]]] = ..., index: _Optional[str] = ..., top_k: _Optional[int] = ..., top_n: _Optional[int] = ..., compression_mode: _Optional[str] = ..., max_tokens: _Optional[int] = ..., search_mode: _Optional[str] = ..., context: _Optional[str] = ..., ratio: _Optional[int] = ..., max_context_vectors: _Optional[int] = ..., target_ms: _Optional[float] = ..., compress_timeout_ms: _Optional[float] = ..., min_relevance: _Optional[float] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., logprobs: _Optional[int] = ..., filter: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Citation(_message.Message):
    __slots__ = ("index", "id", "document_id", "text", "start", "end", "relevance_score", "metadata", "answer_start", "answer_end")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_SCORE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ANSWER_START_FIELD_NUMBER: _ClassVar[int]
    ANSWER_END_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    document_id: str
    text: str
    start: int
    end: int
    relevance_score: float
    metadata: _struct_pb2.Struct
    answer_start: int
    answer_end: int
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., document_id: _Optional[str] = ..., text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., relevance_score: _Optional[float] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., answer_start: _Optional[int] = ..., answer_end: _Optional[int] = ...) -> None: ...

class Snippet(_message.Message):
    __slots__ = ("index", "id", "document_id", "text", "start", "end", "relevance_score")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_SCORE_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    document_id: str
    text: str
    start: int
    end: int
    relevance_score: float
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., document_id: _Optional[str] = ..., text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., relevance_score: _Optional[float] = ...) -> None: ...

class Compression(_message.Message):
    __slots__ = ("mode", "status", "docs", "tokens_in", "vectors_out", "ratio", "flops_plain", "flops_used", "flops_saved", "compress_ms", "reason", "fallback", "left_out")
    MODE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DOCS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_IN_FIELD_NUMBER: _ClassVar[int]
    VECTORS_OUT_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PLAIN_FIELD_NUMBER: _ClassVar[int]
    FLOPS_USED_FIELD_NUMBER: _ClassVar[int]
    FLOPS_SAVED_FIELD_NUMBER: _ClassVar[int]
    COMPRESS_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    mode: str
    status: str
    docs: int
    tokens_in: int
    vectors_out: int
    ratio: float
    flops_plain: int
    flops_used: int
    flops_saved: int
    compress_ms: float
    reason: str
    fallback: _containers.RepeatedScalarFieldContainer[int]
    left_out: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, mode: _Optional[str] = ..., status: _Optional[str] = ..., docs: _Optional[int] = ..., tokens_in: _Optional[int] = ..., vectors_out: _Optional[int] = ..., ratio: _Optional[float] = ..., flops_plain: _Optional[int] = ..., flops_used: _Optional[int] = ..., flops_saved: _Optional[int] = ..., compress_ms: _Optional[float] = ..., reason: _Optional[str] = ..., fallback: _Optional[_Iterable[int]] = ..., left_out: _Optional[_Iterable[int]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "context_vectors", "completion_tokens", "total_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_VECTORS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    context_vectors: int
    completion_tokens: int
    total_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., context_vectors: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("retrieve_ms", "compress_ms", "generate_ms", "ttft_ms", "total_ms", "queue_ms", "tokenize_ms")
    RETRIEVE_MS_FIELD_NUMBER: _ClassVar[int]
    COMPRESS_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATE_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_MS_FIELD_NUMBER: _ClassVar[int]
    retrieve_ms: float
    compress_ms: float
    generate_ms: float
    ttft_ms: float
    total_ms: float
    queue_ms: float
    tokenize_ms: float
    def __init__(self, retrieve_ms: _Optional[float] = ..., compress_ms: _Optional[float] = ..., generate_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., queue_ms: _Optional[float] = ..., tokenize_ms: _Optional[float] = ...) -> None: ...

class Likely(_message.Message):
    __slots__ = ("text", "logprob")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("text", "logprob", "top")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[Likely]
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[Likely, _Mapping]]] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class AnswerResponse(_message.Message):
    __slots__ = ("id", "model", "answer", "finish_reason", "citations", "compression", "usage", "timings", "logprobs", "generator", "grounded", "snippets")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_FIELD_NUMBER: _ClassVar[int]
    GROUNDED_FIELD_NUMBER: _ClassVar[int]
    SNIPPETS_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    answer: str
    finish_reason: str
    citations: _containers.RepeatedCompositeFieldContainer[Citation]
    compression: Compression
    usage: Usage
    timings: Timings
    logprobs: Logprobs
    generator: str
    grounded: bool
    snippets: _containers.RepeatedCompositeFieldContainer[Snippet]
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., answer: _Optional[str] = ..., finish_reason: _Optional[str] = ..., citations: _Optional[_Iterable[_Union[Citation, _Mapping]]] = ..., compression: _Optional[_Union[Compression, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., generator: _Optional[str] = ..., grounded: bool = ..., snippets: _Optional[_Iterable[_Union[Snippet, _Mapping]]] = ...) -> None: ...

class Retrieved(_message.Message):
    __slots__ = ("id", "model", "citations", "compression", "generator")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    citations: _containers.RepeatedCompositeFieldContainer[Citation]
    compression: Compression
    generator: str
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., citations: _Optional[_Iterable[_Union[Citation, _Mapping]]] = ..., compression: _Optional[_Union[Compression, _Mapping]] = ..., generator: _Optional[str] = ...) -> None: ...

class AnswerEvent(_message.Message):
    __slots__ = ("retrieved", "delta", "final", "logprobs")
    RETRIEVED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    retrieved: Retrieved
    delta: str
    final: AnswerResponse
    logprobs: Logprobs
    def __init__(self, retrieved: _Optional[_Union[Retrieved, _Mapping]] = ..., delta: _Optional[str] = ..., final: _Optional[_Union[AnswerResponse, _Mapping]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ...) -> None: ...

class Agreement(_message.Message):
    __slots__ = ("exact", "f1", "cosine")
    EXACT_FIELD_NUMBER: _ClassVar[int]
    F1_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    exact: bool
    f1: float
    cosine: float
    def __init__(self, exact: bool = ..., f1: _Optional[float] = ..., cosine: _Optional[float] = ...) -> None: ...

class CompareResponse(_message.Message):
    __slots__ = ("compressed", "plain", "agreement", "speedup", "flops_saved", "generator_speedup", "pays", "why")
    COMPRESSED_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    FLOPS_SAVED_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    PAYS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    compressed: AnswerResponse
    plain: AnswerResponse
    agreement: Agreement
    speedup: float
    flops_saved: int
    generator_speedup: float
    pays: bool
    why: str
    def __init__(self, compressed: _Optional[_Union[AnswerResponse, _Mapping]] = ..., plain: _Optional[_Union[AnswerResponse, _Mapping]] = ..., agreement: _Optional[_Union[Agreement, _Mapping]] = ..., speedup: _Optional[float] = ..., flops_saved: _Optional[int] = ..., generator_speedup: _Optional[float] = ..., pays: bool = ..., why: _Optional[str] = ...) -> None: ...

class CompressRequest(_message.Message):
    __slots__ = ("model", "query", "documents", "ratio", "keep", "ttl_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    documents: _containers.RepeatedCompositeFieldContainer[Document]
    ratio: int
    keep: bool
    ttl_s: float
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[Document, _Mapping]]] = ..., ratio: _Optional[int] = ..., keep: bool = ..., ttl_s: _Optional[float] = ...) -> None: ...

class CompressedDocument(_message.Message):
    __slots__ = ("index", "id", "relevance_score", "tokens_in", "vectors_out", "windows", "status", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_SCORE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_IN_FIELD_NUMBER: _ClassVar[int]
    VECTORS_OUT_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    relevance_score: float
    tokens_in: int
    vectors_out: int
    windows: int
    status: str
    reason: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., relevance_score: _Optional[float] = ..., tokens_in: _Optional[int] = ..., vectors_out: _Optional[int] = ..., windows: _Optional[int] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CompressResponse(_message.Message):
    __slots__ = ("id", "model", "fingerprint", "context", "expires_at", "results", "compression", "tokens")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    fingerprint: str
    context: str
    expires_at: float
    results: _containers.RepeatedCompositeFieldContainer[CompressedDocument]
    compression: Compression
    tokens: int
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., context: _Optional[str] = ..., expires_at: _Optional[float] = ..., results: _Optional[_Iterable[_Union[CompressedDocument, _Mapping]]] = ..., compression: _Optional[_Union[Compression, _Mapping]] = ..., tokens: _Optional[int] = ...) -> None: ...

class ReleaseContextRequest(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: str
    def __init__(self, context: _Optional[str] = ...) -> None: ...

class ReleaseContextResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PairTraits(_message.Message):
    __slots__ = ("vectors", "rates", "scores", "top_n", "min_relevance", "rank_weight")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    MIN_RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    RANK_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    vectors: _containers.RepeatedScalarFieldContainer[int]
    rates: _containers.RepeatedScalarFieldContainer[int]
    scores: bool
    top_n: int
    min_relevance: float
    rank_weight: float
    def __init__(self, vectors: _Optional[_Iterable[int]] = ..., rates: _Optional[_Iterable[int]] = ..., scores: bool = ..., top_n: _Optional[int] = ..., min_relevance: _Optional[float] = ..., rank_weight: _Optional[float] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "kind", "method", "fingerprint", "dims", "max_tokens", "dtype", "device", "licence", "pooling", "created", "pair", "labels", "independent", "version", "alias_of", "dimensions", "index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LICENCE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    INDEPENDENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_OF_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    method: str
    fingerprint: str
    dims: int
    max_tokens: int
    dtype: str
    device: str
    licence: str
    pooling: str
    created: int
    pair: PairTraits
    labels: _containers.RepeatedScalarFieldContainer[str]
    independent: bool
    version: str
    alias_of: str
    dimensions: _containers.RepeatedScalarFieldContainer[int]
    index: ModelIndex
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., method: _Optional[str] = ..., fingerprint: _Optional[str] = ..., dims: _Optional[int] = ..., max_tokens: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., licence: _Optional[str] = ..., pooling: _Optional[str] = ..., created: _Optional[int] = ..., pair: _Optional[_Union[PairTraits, _Mapping]] = ..., labels: _Optional[_Iterable[str]] = ..., independent: bool = ..., version: _Optional[str] = ..., alias_of: _Optional[str] = ..., dimensions: _Optional[_Iterable[int]] = ..., index: _Optional[_Union[ModelIndex, _Mapping]] = ...) -> None: ...

class ModelIndex(_message.Message):
    __slots__ = ("name", "top_k", "mode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    top_k: int
    mode: str
    def __init__(self, name: _Optional[str] = ..., top_k: _Optional[int] = ..., mode: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "refused")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    refused: _containers.ScalarMap[str, str]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ..., refused: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetReportRequest(_message.Message):
    __slots__ = ("model", "with_card", "with_plots")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WITH_CARD_FIELD_NUMBER: _ClassVar[int]
    WITH_PLOTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    with_card: bool
    with_plots: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., with_card: bool = ..., with_plots: _Optional[_Iterable[str]] = ...) -> None: ...

class GetReportResponse(_message.Message):
    __slots__ = ("model", "version", "fingerprint", "report", "has_card", "plots", "card", "pictures")
    class PicturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    HAS_CARD_FIELD_NUMBER: _ClassVar[int]
    PLOTS_FIELD_NUMBER: _ClassVar[int]
    CARD_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    fingerprint: str
    report: str
    has_card: bool
    plots: _containers.RepeatedScalarFieldContainer[str]
    card: str
    pictures: _containers.ScalarMap[str, bytes]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., fingerprint: _Optional[str] = ..., report: _Optional[str] = ..., has_card: bool = ..., plots: _Optional[_Iterable[str]] = ..., card: _Optional[str] = ..., pictures: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class StoredModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoredModel(_message.Message):
    __slots__ = ("name", "version", "state", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    state: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StoredModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[StoredModel]
    def __init__(self, models: _Optional[_Iterable[_Union[StoredModel, _Mapping]]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "version", "again")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    again: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., again: bool = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("version", "fingerprint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    version: str
    fingerprint: str
    def __init__(self, version: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model", "previous", "changed", "seconds", "memory_bytes", "stranded_indexes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STRANDED_INDEXES_FIELD_NUMBER: _ClassVar[int]
    model: ModelInfo
    previous: Revision
    changed: bool
    seconds: float
    memory_bytes: int
    stranded_indexes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[_Union[ModelInfo, _Mapping]] = ..., previous: _Optional[_Union[Revision, _Mapping]] = ..., changed: bool = ..., seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., stranded_indexes: _Optional[_Iterable[str]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model", "force")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    model: str
    force: bool
    def __init__(self, model: _Optional[str] = ..., force: bool = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("revision", "seconds", "stranded_indexes")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STRANDED_INDEXES_FIELD_NUMBER: _ClassVar[int]
    revision: Revision
    seconds: float
    stranded_indexes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, revision: _Optional[_Union[Revision, _Mapping]] = ..., seconds: _Optional[float] = ..., stranded_indexes: _Optional[_Iterable[str]] = ...) -> None: ...

class SetAliasRequest(_message.Message):
    __slots__ = ("aliases",)
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    aliases: _containers.ScalarMap[str, str]
    def __init__(self, aliases: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SetAliasResponse(_message.Message):
    __slots__ = ("aliases",)
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    aliases: _containers.ScalarMap[str, str]
    def __init__(self, aliases: _Optional[_Mapping[str, str]] = ...) -> None: ...
