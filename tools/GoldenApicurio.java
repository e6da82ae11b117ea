// Prints keys and values as Apicurio's serializers write them, with the schemas that they register: one JSON object.
//
//     java -cp 'JARS/*' tools/GoldenApicurio.java
//
// The registry is this program: it answers what a serializer registers with an id. A case has name, topic, side, data and
// headers (base64), format, and what was serialized as JSON.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto.Label;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto.Type;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.sun.net.httpserver.HttpServer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serializer;

public class GoldenApicurio {
    static final ObjectMapper MAPPER = new ObjectMapper();
    static final ObjectNode SCHEMAS = MAPPER.createObjectNode();
    static final ArrayNode CASES = MAPPER.createArrayNode();
    static String kind;
    static int last = 40;

    static final String ORDER = """
        {"type": "record", "name": "Order", "namespace": "shop", "fields": [
          {"name": "id", "type": "long"},
          {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
          {"name": "note", "type": ["null", "string"], "default": null},
          {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
          {"name": "tags", "type": {"type": "map", "values": "int"}},
          {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "next", "type": ["null", "Line"], "default": null}]}}}]}""";
    static final String ORDER_JSON = """
        {"id": -9223372036854775808, "amount": "-12.50", "note": "Zoë", "state": "PAID", "tags": {"a": 1},
         "lines": [{"sku": "x", "next": {"sku": "y", "next": null}}]}""";

    static GenericRecord order() {
        Schema schema = new Schema.Parser().parse(ORDER);
        Schema line = schema.getField("lines").schema().getElementType();
        GenericRecord second = new GenericData.Record(line);
        second.put("sku", "y");
        GenericRecord first = new GenericData.Record(line);
        first.put("sku", "x");
        first.put("next", second);
        GenericRecord order = new GenericData.Record(schema);
        order.put("id", Long.MIN_VALUE);
        order.put("amount", ByteBuffer.wrap(new java.math.BigInteger("-1250").toByteArray()));
        order.put("note", "Zoë");
        order.put("state", new GenericData.EnumSymbol(schema.getField("state").schema(), "PAID"));
        order.put("tags", Map.of("a", 1));
        order.put("lines", List.of(first));
        return order;
    }

    static DynamicMessage event() throws Exception {
        FieldDescriptorProto.Builder sku = FieldDescriptorProto.newBuilder().setName("sku").setNumber(1)
            .setType(Type.TYPE_STRING).setLabel(Label.LABEL_OPTIONAL);
        FieldDescriptorProto.Builder id = FieldDescriptorProto.newBuilder().setName("id").setNumber(1)
            .setType(Type.TYPE_SINT64).setLabel(Label.LABEL_OPTIONAL);
        FieldDescriptorProto.Builder lines = FieldDescriptorProto.newBuilder().setName("lines").setNumber(2)
            .setType(Type.TYPE_MESSAGE).setTypeName(".shop.Line").setLabel(Label.LABEL_REPEATED);
        FieldDescriptorProto.Builder raw = FieldDescriptorProto.newBuilder().setName("raw").setNumber(3)
            .setType(Type.TYPE_BYTES).setLabel(Label.LABEL_OPTIONAL);
        FileDescriptorProto file = FileDescriptorProto.newBuilder().setName("shop.proto").setPackage("shop").setSyntax("proto3")
            .addMessageType(DescriptorProto.newBuilder().setName("Line").addField(sku))
            .addMessageType(DescriptorProto.newBuilder().setName("Event").addField(id).addField(lines).addField(raw)).build();
        FileDescriptor built = FileDescriptor.buildFrom(file, new FileDescriptor[0]);
        Descriptor line = built.findMessageTypeByName("Line");
        Descriptor event = built.findMessageTypeByName("Event");
        return DynamicMessage.newBuilder(event)
            .setField(event.findFieldByName("id"), -7L)
            .addRepeatedField(event.findFieldByName("lines"),
                DynamicMessage.newBuilder(line).setField(line.findFieldByName("sku"), "x").build())
            .setField(event.findFieldByName("raw"), ByteString.copyFrom(new byte[] {0, 1, (byte) 255}))
            .build();
    }

    static HttpServer registry() throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            JsonNode wrapped = body.startsWith("{\"content\"") ? MAPPER.readTree(body).get("content") : null;
            String text = wrapped == null ? body : wrapped.asText();
            String id = String.valueOf(++last);
            SCHEMAS.putObject(id).put("schema", text).put("type", kind).putObject("references");
            byte[] answer = ("{\"id\":\"a\",\"groupId\":\"default\",\"version\":\"1\",\"type\":\"" + kind
                + "\",\"state\":\"ENABLED\",\"globalId\":" + id + ",\"contentId\":" + id + ",\"references\":[]}")
                .getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().add("Content-Type", "application/json");
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
        return server;
    }

    static void add(String name, String format, Serializer<Object> serializer, String url, boolean key, Object value,
            String read, Map<String, Object> more) throws Exception {
        Map<String, Object> configs = new HashMap<>(more);
        configs.put("apicurio.registry.url", url);
        configs.put("apicurio.registry.auto-register", true);
        serializer.configure(configs, key);
        Headers headers = new RecordHeaders();
        byte[] data = serializer.serialize("orders", headers, value);
        ObjectNode made = CASES.addObject();
        made.put("name", "apicurio-" + name).put("topic", "orders").put("side", key ? "key" : "value")
            .put("data", Base64.getEncoder().encodeToString(data)).put("format", format);
        ArrayNode written = made.putArray("headers");
        for (Header header : headers)
            written.addArray().add(header.key()).add(Base64.getEncoder().encodeToString(header.value()));
        made.set("json", MAPPER.readTree(read));
    }

    @SuppressWarnings("unchecked")
    static <T> Serializer<Object> of(Serializer<T> serializer) {
        return (Serializer<Object>) (Serializer<?>) serializer;
    }

    public static void main(String[] arguments) throws Exception {
        HttpServer server = registry();
        String url = "http://127.0.0.1:" + server.getAddress().getPort() + "/apis/registry/v2";
        Map<String, Map<String, Object>> ways = new java.util.LinkedHashMap<>();
        ways.put("headers", Map.of("apicurio.registry.headers.enabled", true));
        ways.put("eight", Map.of("apicurio.registry.headers.enabled", false));
        ways.put("four", Map.of("apicurio.registry.headers.enabled", false,
            "apicurio.registry.id-handler", "io.apicurio.registry.serde.Legacy4ByteIdHandler"));
        ways.put("content", Map.of("apicurio.registry.headers.enabled", true, "apicurio.registry.use-id", "contentId"));
        for (var way : ways.entrySet()) {
            String name = way.getKey();
            Map<String, Object> how = way.getValue();
            kind = "AVRO";
            add("avro-" + name, "avro", of(new AvroKafkaSerializer<GenericRecord>()), url, false, order(), ORDER_JSON, how);
            add("avro-key-" + name, "avro", of(new AvroKafkaSerializer<Object>()), url, true, "customer-7", "\"customer-7\"", how);
            kind = "PROTOBUF";
            add("protobuf-" + name, "protobuf", of(new ProtobufKafkaSerializer<DynamicMessage>()), url, false, event(),
                "{\"id\":-7,\"lines\":[{\"sku\":\"x\"}],\"raw\":\"AAH/\"}", how);
        }
        kind = "AVRO";
        Map<String, Object> json = new HashMap<>(ways.get("headers"));
        json.put("apicurio.registry.avro.encoding", "JSON");
        add("avro-json", "json", of(new AvroKafkaSerializer<Object>()), url, true, "customer-7", "\"customer-7\"", json);
        server.stop(0);
        ObjectNode out = MAPPER.createObjectNode();
        out.set("schemas", SCHEMAS);
        out.set("cases", CASES);
        System.out.println(MAPPER.writerWithDefaultPrettyPrinter().writeValueAsString(out));
        System.exit(0);
    }
}
