// Prints golden messages: for every API, direction and version of the kafka-clients on the class path, COUNT messages
// with random values from a fixed SEED, as Kafka's own generated code writes them and as its JSON converters show them.
//
//     java -cp 'JARS/*' tools/Golden.java SEED COUNT [CLASS...]
//
// One line a message: api_key, direction (0 request, 1 response), version, hex, JSON (serializeRecords = false);
// tab-separated. Random values are made from the message's Schema, so this works for every release alike. With classes
// (generated ones, of data that lies in records and bytes fields) these instead: name, version, hex, JSON.
import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

public class Golden {
    static Random random;
    // A small vocabulary keeps the committed file small; it has what breaks decoders: empty, long, not ASCII.
    static final String[] WORDS = {"", "a", "orders", "payments-2", "group.id", "é漢\uD83D\uDE00", "x".repeat(130)};

    static Object value(Type type) throws Exception {
        if (type.isNullable() && random.nextInt(5) == 0) return null;
        if (type instanceof Schema schema) return struct(schema);
        if (type.arrayElementType().isPresent()) {
            List<Object> items = new ArrayList<>();
            for (int n = random.nextInt(3); n > 0; n--) items.add(value(type.arrayElementType().get()));
            return items.toArray();
        }
        if (type instanceof TaggedFields fields) {
            NavigableMap<Integer, Object> values = new TreeMap<>();
            for (var entry : fieldsOf(fields).entrySet())
                if (random.nextInt(3) > 0) values.put(entry.getKey(), value(entry.getValue().type));
            // Tags that this release does not know, as a newer one would send them.
            if (random.nextInt(8) == 0) values.put(1000, new RawTaggedField(1000, new byte[] {1, 2, 3}));
            if (random.nextInt(12) == 0) values.put(70000, new RawTaggedField(70000, new byte[0]));
            return values;
        }
        switch (type.toString()) {
            case "BOOLEAN": return random.nextBoolean();
            case "INT8": return (byte) edge(8);
            case "INT16": return (short) edge(16);
            case "UINT16": return (int) (edge(16) & 0xffff);
            case "INT32": return (int) edge(32);
            case "UINT32": return edge(32) & 0xffffffffL;
            case "INT64": return edge(64);
            case "FLOAT64": return new double[] {0, 1.5, -2.25e-300, 1e17, 123456.789}[random.nextInt(5)];
            case "UUID": return random.nextBoolean() ? Uuid.ZERO_UUID : new Uuid(random.nextLong(), random.nextLong());
            default:
        }
        String name = type.toString();
        if (name.contains("STRING")) return WORDS[random.nextInt(WORDS.length)];
        byte[] bytes = new byte[new int[] {0, 1, 5, 20}[random.nextInt(4)]];
        random.nextBytes(bytes);
        if (name.contains("RECORDS")) return records(ByteBuffer.wrap(bytes));
        if (name.contains("BYTES")) return ByteBuffer.wrap(bytes);
        // Nullable structs of a schema hide behind a wrapper type in some releases.
        throw new IllegalStateException("no values for " + name + " " + type.getClass());
    }

    @SuppressWarnings("unchecked")
    static Map<Integer, Field> fieldsOf(TaggedFields tagged) throws Exception {
        var field = TaggedFields.class.getDeclaredField("fields"); // has no getter in 3.9
        field.setAccessible(true);
        return (Map<Integer, Field>) field.get(tagged);
    }

    static Object records(ByteBuffer buffer) throws Exception {
        Class<?> type;
        try {
            type = Class.forName("org.apache.kafka.common.record.MemoryRecords");
        } catch (ClassNotFoundException e) {
            type = Class.forName("org.apache.kafka.common.record.internal.MemoryRecords"); // moved in 4.4
        }
        Method readable = type.getMethod("readableRecords", ByteBuffer.class);
        return readable.invoke(null, buffer);
    }

    static long edge(int bits) {
        long high = (1L << (bits - 1)) - 1;
        long[] some = {0, 1, -1, 7, 100, high, -high - 1};
        return some[random.nextInt(some.length)];
    }

    static Struct struct(Schema schema) throws Exception {
        Struct struct = new Struct(schema);
        for (BoundField field : schema.fields()) struct.set(field, value(field.def.type));
        return struct;
    }

    // Like Schema.write, but with the marker byte before a struct where `marked`.
    static void write(ByteBuffer out, Type type, Object value, boolean marked) {
        if (type.getClass() == Schema.class) {
            for (BoundField field : ((Schema) type).fields()) {
                Object inner = ((Struct) value).get(field);
                if (marked && field.def.type.getClass() == Schema.class) {
                    boolean absent = random.nextInt(4) == 0;
                    out.put((byte) (absent ? -1 : 1));
                    if (absent) continue;
                }
                write(out, field.def.type, inner, marked);
            }
        } else if (type.arrayElementType().isPresent() && value != null) {
            Object[] items = (Object[]) value;
            boolean compact = type.getClass().getSimpleName().startsWith("Compact");
            if (compact) out.put((byte) (items.length + 1)); // never more than two items, so one byte is enough
            else out.putInt(items.length);
            for (Object item : items) write(out, type.arrayElementType().get(), item, marked);
        } else {
            type.write(out, value);
        }
    }

    static void message(String label, Callable<? extends Message> maker, short version, Schema schema) throws Exception {
        RuntimeException why = null;
        for (int attempt = 0; attempt < 1000; attempt++) {
            Message message = maker.call();
            try {
                ByteBuffer buffer = ByteBuffer.allocate(1 << 16);
                write(buffer, schema, struct(schema), attempt > 10);
                buffer.flip();
                message.read(new ByteBufferAccessor(buffer), version);
                if (buffer.hasRemaining()) throw new IllegalStateException("bytes left over");
                print(label, version, message);
                return;
            } catch (RuntimeException e) {
                // The Schema of 3.9 lacks the marker byte of nullable structs, which its reader and writer have: try
                // again, after some attempts with it.
                why = e;
            }
        }
        throw new IllegalStateException(label + " " + version, why);
    }

    static void print(String label, short version, Message message) throws Exception {
        // Written again: tagged fields at their default disappear, as they do in what Kafka sends.
        var cache = new ObjectSerializationCache();
        ByteBuffer out = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(out), cache, version);
        Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
        JsonNode json = (JsonNode) converter.getMethod("write", message.getClass(), short.class, boolean.class)
            .invoke(null, message, version, false);
        System.out.println(label + "\t" + version + "\t"
            + HexFormat.of().formatHex(out.array()) + "\t" + json);
    }

    static void data(String className, long seed, int count) throws Exception {
        Class<?> type = Class.forName(className);
        Schema[] schemas = (Schema[]) type.getField("SCHEMAS").get(null);
        for (short version = 0; version < schemas.length; version++) {
            if (schemas[version] == null) continue;
            random = new Random(seed * 1_000_003L + type.getSimpleName().hashCode() * 100L + version);
            Callable<Message> maker = () -> (Message) type.getConstructor().newInstance();
            for (int n = 0; n < count; n++) message(type.getSimpleName(), maker, version, schemas[version]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new java.io.PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8"));
        long seed = Long.parseLong(arguments[0]);
        int count = Integer.parseInt(arguments[1]);
        for (int n = 2; n < arguments.length; n++) data(arguments[n], seed, count);
        if (arguments.length > 2) return;
        for (ApiMessageType api : ApiMessageType.values()) {
            for (int direction = 0; direction < 2; direction++) {
                Schema[] schemas = direction == 0 ? api.requestSchemas() : api.responseSchemas();
                for (short version = 0; schemas != null && version < schemas.length; version++) {
                    if (schemas[version] == null) continue;
                    random = new Random(seed * 1_000_003L + api.apiKey() * 1000L + direction * 100 + version);
                    Callable<ApiMessage> maker = direction == 0 ? api::newRequest : api::newResponse;
                    for (int n = 0; n < count; n++)
                        message(api.apiKey() + "\t" + direction, maker, version, schemas[version]);
                }
            }
        }
        System.out.flush();
    }
}
