// Prints keys and values as Kafka's own tools write them: MirrorMaker's checkpoints, heartbeats and offset syncs, Connect's
// offsets, configs and status, and what Kafka Streams puts around keys and values in changelogs and foreign-key joins.
//
//     java -cp 'JARS/*' tools/GoldenPayloads.java
//
// One line each: topic, `key` or `value`, hex, and as JSON what was serialized; tab-separated. Of MirrorMaker the JSON is
// what Kafka's Schema of that format reads from these bytes.
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.mirror.Checkpoint;
import org.apache.kafka.connect.mirror.Heartbeat;
import org.apache.kafka.connect.mirror.OffsetSync;
import org.apache.kafka.connect.runtime.AbstractStatus;
import org.apache.kafka.connect.runtime.ConnectorStatus;
import org.apache.kafka.connect.runtime.TaskStatus;
import org.apache.kafka.connect.runtime.TopicStatus;
import org.apache.kafka.connect.storage.KafkaConfigBackingStore;
import org.apache.kafka.connect.storage.KafkaStatusBackingStore;
import org.apache.kafka.connect.util.ConnectorTaskId;
import org.apache.kafka.streams.kstream.TimeWindowedSerializer;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.TimeWindow;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.CombinedKeySchema;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionResponseWrapper;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionResponseWrapperSerde;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionWrapper;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionWrapperSerde;
import org.apache.kafka.streams.state.internals.SessionKeySchema;
import org.apache.kafka.streams.state.internals.WindowKeySchema;

public class GoldenPayloads {
    static final ObjectMapper MAPPER = new ObjectMapper();
    static final Headers HEADERS = new RecordHeaders();
    static final long START = 1_764_288_000_123L;

    static void line(String topic, String side, byte[] bytes, Object read) throws Exception {
        String json = read instanceof String text ? text : MAPPER.writeValueAsString(read);
        System.out.println(topic + "\t" + side + "\t" + HexFormat.of().formatHex(bytes) + "\t" + json);
    }

    static Method method(Class<?> type, String name, Class<?>... parameters) throws Exception {
        Method method = type.getDeclaredMethod(name, parameters);
        method.setAccessible(true);
        return method;
    }

    static byte[] bytes(Object record, String name) throws Exception {
        return (byte[]) method(record.getClass(), name).invoke(record);
    }

    static void schemas(String topic, String side, byte[] bytes, Schema... schemas) throws Exception {
        ByteBuffer reading = ByteBuffer.wrap(bytes);
        Map<String, Object> read = new LinkedHashMap<>();
        for (Schema schema : schemas) {
            Struct struct = schema.read(reading);
            for (BoundField field : struct.schema().fields()) read.put(field.def.name, struct.get(field));
        }
        if (reading.hasRemaining()) throw new IllegalStateException("bytes left over");
        if (read.get("timestamp") instanceof Long millis) read.put("timestamp", time(millis));
        line(topic, side, bytes, read);
    }

    static String time(long millis) {
        return Instant.ofEpochMilli(millis).toString().replaceFirst("Z$", "000Z");
    }

    static void mirror() throws Exception {
        for (Checkpoint checkpoint : List.of(
                new Checkpoint("g-é", new TopicPartition("orders", 3), 1L << 40, 17, "held by x"),
                new Checkpoint("g", new TopicPartition("orders", 0), 0, 0, ""))) {
            String topic = "us-west.checkpoints.internal";
            schemas(topic, "key", bytes(checkpoint, "recordKey"), Checkpoint.KEY_SCHEMA);
            schemas(topic, "value", bytes(checkpoint, "recordValue"), Checkpoint.HEADER_SCHEMA, Checkpoint.VALUE_SCHEMA_V0);
        }
        Heartbeat heartbeat = new Heartbeat("us-west", "eu", START);
        for (String topic : List.of("heartbeats", "us-west.heartbeats")) {
            schemas(topic, "key", bytes(heartbeat, "recordKey"), Heartbeat.KEY_SCHEMA);
            schemas(topic, "value", bytes(heartbeat, "recordValue"), Heartbeat.HEADER_SCHEMA, Heartbeat.VALUE_SCHEMA_V0);
        }
        OffsetSync sync = new OffsetSync(new TopicPartition("orders", 7), 123456, -1);
        schemas("mm2-offset-syncs.eu.internal", "key", bytes(sync, "recordKey"), OffsetSync.KEY_SCHEMA);
        schemas("mm2-offset-syncs.eu.internal", "value", bytes(sync, "recordValue"), OffsetSync.VALUE_SCHEMA);
    }

    static org.apache.kafka.connect.data.Struct struct(org.apache.kafka.connect.data.Schema schema, Object... pairs) {
        var struct = new org.apache.kafka.connect.data.Struct(schema);
        for (int i = 0; i < pairs.length; i += 2) struct.put((String) pairs[i], pairs[i + 1]);
        return struct;
    }

    static void connect() throws Exception {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false"), false);
        // As OffsetStorageWriter: the key is [connector, partition].
        line("connect-offsets", "key",
            converter.fromConnectData("c", null, List.of("file-source", Map.of("filename", "/tmp/é.txt"))),
            "[\"file-source\",{\"filename\":\"/tmp/é.txt\"}]");
        line("connect-offsets", "value", converter.fromConnectData("c", null, Map.of("position", 1L << 40)),
            "{\"position\":1099511627776}");
        Map<String, String> properties = new LinkedHashMap<>();
        properties.put("tasks.max", "2");
        properties.put("topic", null);
        List<Object[]> configs = List.of(
            new Object[] {KafkaConfigBackingStore.CONNECTOR_CONFIGURATION_V0, "{\"properties\":{\"tasks.max\":\"2\",\"topic\":null}}",
                "properties", properties},
            new Object[] {KafkaConfigBackingStore.CONNECTOR_TASKS_COMMIT_V0, "{\"tasks\":2}", "tasks", 2},
            new Object[] {KafkaConfigBackingStore.TARGET_STATE_V1, "{\"state\":\"PAUSED\",\"state.v2\":\"STOPPED\"}",
                "state", "PAUSED", "state.v2", "STOPPED"},
            new Object[] {KafkaConfigBackingStore.TASK_COUNT_RECORD_V0, "{\"task-count\":3}", "task-count", 3},
            new Object[] {KafkaConfigBackingStore.RESTART_REQUEST_V0, "{\"include-tasks\":true,\"only-failed\":false}",
                "include-tasks", true, "only-failed", false},
            new Object[] {KafkaConfigBackingStore.LOGGER_LEVEL_V0, "{\"level\":\"DEBUG\"}", "level", "DEBUG"});
        for (Object[] config : configs) {
            var schema = (org.apache.kafka.connect.data.Schema) config[0];
            var value = struct(schema, Arrays.copyOfRange(config, 2, config.length));
            line("connect-configs", "value", converter.fromConnectData("c", schema, value), config[1]);
        }
        for (String key : List.of("connector-file-source", "task-file-source-0", "commit-file-source", "target-state-x"))
            line("connect-configs", "key", key.getBytes(StandardCharsets.UTF_8), MAPPER.writeValueAsString(key));
        Constructor<?> made = Arrays.stream(KafkaStatusBackingStore.class.getDeclaredConstructors())
            .filter(constructor -> constructor.getParameterCount() == 4).findFirst().orElseThrow();
        Supplier<Object> none = () -> null;
        Object store = made.newInstance(Time.SYSTEM, converter, none, "id");
        Method serialize = method(KafkaStatusBackingStore.class, "serialize", AbstractStatus.class);
        line("connect-status", "value",
            (byte[]) serialize.invoke(store, new ConnectorStatus("c", ConnectorStatus.State.RUNNING, "10.0.0.1:8083", 7)),
            "{\"state\":\"RUNNING\",\"trace\":null,\"worker_id\":\"10.0.0.1:8083\",\"generation\":7,\"version\":null}");
        line("connect-status", "value",
            (byte[]) serialize.invoke(store, new TaskStatus(new ConnectorTaskId("c", 1), TaskStatus.State.FAILED, "w", 8, "java.lang.X\n\tat y", null)),
            "{\"state\":\"FAILED\",\"trace\":\"java.lang.X\\n\\tat y\",\"worker_id\":\"w\",\"generation\":8,\"version\":null}");
        Method ofTopic = method(KafkaStatusBackingStore.class, "serializeTopicStatus", TopicStatus.class);
        line("connect-status", "value", (byte[]) ofTopic.invoke(store, new TopicStatus("orders", "c", 0, START)),
            "{\"topic\":{\"name\":\"orders\",\"connector\":\"c\",\"task\":0,\"discoverTimestamp\":" + START + "}}");
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> out = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) out.put((String) pairs[i], pairs[i + 1]);
        return out;
    }

    static void streams() throws Exception {
        String changelog = "app-counts-changelog";
        Bytes key = Bytes.wrap("customer-7".getBytes(StandardCharsets.UTF_8));
        line(changelog, "key", WindowKeySchema.toStoreKeyBinary(key, START, 0).get(),
            map("key", "customer-7", "start", time(START), "sequence", 0));
        line(changelog, "key", WindowKeySchema.toStoreKeyBinary(key, START, 5).get(),
            map("key", "customer-7", "start", time(START), "sequence", 5));
        byte[] seven = {0, 0, 0, 0, 0, 0, 0, 7};
        line(changelog, "key", WindowKeySchema.toStoreKeyBinary(Bytes.wrap(seven), START, 0).get(),
            map("key", "AAAAAAAAAAc=", "start", time(START), "sequence", 0));
        line(changelog, "key", SessionKeySchema.toBinary(key, START, START + 5000).get(),
            map("key", "customer-7", "start", time(START), "end", time(START + 5000)));
        line(changelog, "key", key.get(), "\"customer-7\"");
        line("app-by-customer-repartition", "key",
            new TimeWindowedSerializer<>(new StringSerializer())
                .serialize("t", new Windowed<>("customer-7", new TimeWindow(START, START + 60000))),
            map("key", "customer-7", "start", time(START)));
        line("app-by-customer-repartition", "key", key.get(), "\"customer-7\"");
        String registration = "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic";
        String response = "app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000012-topic";
        String store = "app-KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000005-changelog";
        long[] hash = {0x0123456789abcdefL, -2};
        String hex = "0123456789abcdeffffffffffffffffe";
        Supplier<String> name = () -> "pk";
        var wrapper = new SubscriptionWrapperSerde<>(name, Serdes.String()).serializer();
        for (long[] some : Arrays.asList(hash, null))
            for (byte version = 0; version <= 1; version++)
                for (var instruction : SubscriptionWrapper.Instruction.values()) {
                    var written = new SubscriptionWrapper<>(some, instruction, "order-1", version, version == 0 ? null : 6);
                    Map<String, Object> read = map("version", version, "instruction", instruction.name(),
                        "hash", some == null ? null : hex, "primaryKey", "order-1");
                    if (version == 1) read.put("primaryPartition", 6);
                    line(registration, "value", wrapper.serialize("t", HEADERS, written), read);
                }
        line(store, "value",
            wrapper.serialize("t", HEADERS, new SubscriptionWrapper<>(hash,
                SubscriptionWrapper.Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE, "order-1", (byte) 1, 6)),
            map("version", 1, "instruction", "PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE", "hash", hex, "primaryKey", "order-1",
                "primaryPartition", 6));
        var answered = new SubscriptionResponseWrapperSerde<>(Serdes.String()).serializer();
        for (long[] some : Arrays.asList(hash, null))
            for (String value : Arrays.asList("{\"name\":\"Zoë\"}", null))
                line(response, "value", answered.serialize("t", HEADERS, new SubscriptionResponseWrapper<>(some, value, 0)),
                    map("version", 0, "hash", some == null ? null : hex,
                        "value", value == null ? null : MAPPER.readTree(value)));
        var combined = new CombinedKeySchema<>(name, Serdes.String(), name, Serdes.String());
        Method toBytes = method(CombinedKeySchema.class, "toBytes", Object.class, Object.class, Headers.class);
        for (String field : List.of("primaryKeySerdeTopic", "foreignKeySerdeTopic")) {
            var member = CombinedKeySchema.class.getDeclaredField(field);
            member.setAccessible(true);
            member.set(combined, "t");
        }
        for (String field : List.of("primaryKeySerializer", "foreignKeySerializer")) {
            var member = CombinedKeySchema.class.getDeclaredField(field);
            member.setAccessible(true);
            member.set(combined, new StringSerializer());
        }
        Bytes written = (Bytes) toBytes.invoke(combined, "customer-7", "order-1", HEADERS);
        line(store, "key", written.get(), map("foreignKey", "customer-7", "primaryKey", "order-1"));
    }

    public static void main(String[] arguments) throws Exception {
        mirror();
        connect();
        streams();
    }
}
