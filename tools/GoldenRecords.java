// Prints records of internal topics as Kafka's own serdes write and read them: key and value with what says their type
// and version. Reads lines of golden data (`Golden.java` with classes) on stdin for what to put into them.
//
//     java -cp 'JARS/*' tools/GoldenRecords.java < data.tsv
//
// One line a record: topic, key (hex, `-` for none), value (hex, `-` for a tombstone), and JSON of what the serde reads
// from these bytes, by Kafka's own converters: type, key, version, value; tab-separated.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metadata.MetadataJsonConverters;
import org.apache.kafka.common.metadata.MetadataRecordType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.transaction.TransactionCoordinatorRecordSerde;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

public class GoldenRecords {
    record Data(short version, byte[] bytes) {}

    static Map<String, List<Data>> golden = new HashMap<>();

    static String hex(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }

    static void print(String topic, String type, byte[] key, byte[] value, JsonNode keyJson, int version, JsonNode json) {
        ObjectNode out = new ObjectNode(JsonNodeFactory.instance).put("type", type);
        if (keyJson != null) out.set("key", keyJson);
        if (value != null) out.put("version", version);
        out.set("value", json);
        System.out.println(topic + "\t" + hex(key) + "\t" + hex(value) + "\t" + out);
    }

    static ApiMessage read(ApiMessage into, Data data) {
        into.read(new ByteBufferAccessor(ByteBuffer.wrap(data.bytes)), data.version);
        return into;
    }

    static void coordinator(String topic, CoordinatorRecordSerde serde, String generated) throws Exception {
        Class<?> types = Class.forName(generated + ".CoordinatorRecordType");
        Class<?> converters = Class.forName(generated + ".CoordinatorRecordJsonConverters");
        var keyJson = converters.getMethod("writeRecordKeyAsJson", ApiMessage.class);
        var valueJson = converters.getMethod("writeRecordValueAsJson", ApiMessage.class, short.class);
        for (Object type : types.getEnumConstants()) {
            Class<?> keyClass = types.getMethod("newRecordKey").invoke(type).getClass();
            String name = keyClass.getSimpleName().substring(0, keyClass.getSimpleName().length() - 3);
            Data keyData = golden.get(name + "Key").get(0);
            int last = -1;
            for (Data valueData : golden.get(name + "Value")) {
                if (valueData.version == last) continue; // one of each version is enough
                last = valueData.version;
                ApiMessage key = read((ApiMessage) types.getMethod("newRecordKey").invoke(type), keyData);
                ApiMessage value = read((ApiMessage) types.getMethod("newRecordValue").invoke(type), valueData);
                CoordinatorRecord record =
                    CoordinatorRecord.record(key, new ApiMessageAndVersion(value, valueData.version));
                byte[] keyBytes = serde.serializeKey(record), valueBytes = serde.serializeValue(record);
                CoordinatorRecord back = serde.deserialize(ByteBuffer.wrap(keyBytes), ByteBuffer.wrap(valueBytes));
                short version = back.value().version();
                print(topic, name, keyBytes, valueBytes, (JsonNode) keyJson.invoke(null, back.key()), version,
                    (JsonNode) valueJson.invoke(null, back.value().message(), version));
            }
            ApiMessage key = read((ApiMessage) types.getMethod("newRecordKey").invoke(type), keyData);
            byte[] keyBytes = serde.serializeKey(CoordinatorRecord.tombstone(key));
            print(topic, name, keyBytes, null, (JsonNode) keyJson.invoke(null, key), 0, null);
        }
    }

    static void metadata() {
        for (MetadataRecordType type : MetadataRecordType.values()) {
            String name = type.newMetadataRecord().getClass().getSimpleName();
            int last = -1;
            for (Data data : golden.get(name)) {
                if (data.version == last) continue;
                last = data.version;
                var message = new ApiMessageAndVersion(read(type.newMetadataRecord(), data), data.version);
                var cache = new ObjectSerializationCache();
                ByteBuffer out = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(message, cache));
                MetadataRecordSerde.INSTANCE.write(message, cache, new ByteBufferAccessor(out));
                var in = new ByteBufferAccessor(ByteBuffer.wrap(out.array()));
                ApiMessageAndVersion back = MetadataRecordSerde.INSTANCE.read(in, out.capacity());
                print("__cluster_metadata", name, null, out.array(), null, back.version(),
                    MetadataJsonConverters.writeJson(back.message(), back.version()));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new java.io.PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, "UTF-8"));
        var lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t");
            golden.computeIfAbsent(parts[0], name -> new ArrayList<>())
                .add(new Data(Short.parseShort(parts[1]), HexFormat.of().parseHex(parts[2])));
        }
        String coordinators = "org.apache.kafka.coordinator.";
        coordinator("__consumer_offsets", new GroupCoordinatorRecordSerde(), coordinators + "group.generated");
        coordinator("__transaction_state", new TransactionCoordinatorRecordSerde(),
            coordinators + "transaction.generated");
        coordinator("__share_group_state", new ShareCoordinatorRecordSerde(), coordinators + "share.generated");
        metadata();
    }
}
